// RUN: treadle-opt %s -p 'graph-multiply-bytes{target=sm_80}' | filecheck %s
// RUN: treadle-opt %s -p 'graph-multiply-bytes{target="sm_80{peak_int8_tensor=0}"}' | filecheck %s --check-prefix=NONE
// RUN: treadle-opt %s -p 'graph-multiply-bytes{target="cpu{matrix_unit=amx}"}' | filecheck %s --check-prefix=NONE

// NONE-NOT: sums = i32

// Bytes less a zero point by a constant, which is stored along K. What only computed the operands is gone.
func.func @main(%x: tensor<4x3xui8>) -> tensor<4x2xi32> {
  %w = graph.constant #graph.inline<"1, -2, 3, 4, -5, 6"> : tensor<3x2xi32>
  %z = graph.constant #graph.inline<"7"> : tensor<i32>
  %wide = graph.cast %x to i32 : (tensor<4x3xui8>) -> tensor<4x3xi32>
  %d = graph.binary "sub" %wide, %z : (tensor<4x3xi32>, tensor<i32>) -> tensor<4x3xi32>
  %y = graph.matmul %d, %w : (tensor<4x3xi32>, tensor<3x2xi32>) -> tensor<4x2xi32>
  func.return %y : tensor<4x2xi32>
}

// CHECK-LABEL: @main
// CHECK-NEXT: %w = graph.constant #graph.inline<"1, 3, -5, -2, 4, 6"> : tensor<2x3xi8>
// CHECK-NEXT: [[W:%\S+]] = graph.transpose %w {perm = array<i64: 1, 0>} : (tensor<2x3xi8>) -> tensor<3x2xi8>
// CHECK-NEXT: [[S:%\S+]] = graph.matmul %x, [[W]] {sums = i32} : (tensor<4x3xui8>, tensor<3x2xi8>) -> tensor<4x2xi32>
// CHECK-NEXT: [[T:%\S+]] = graph.constant #graph.inline<"-7, 56"> : tensor<2xi32>
// CHECK-NEXT: [[Y:%\S+]] = graph.binary "sub" [[S]], [[T]]
// CHECK-NEXT: func.return [[Y]]

// Where the right operand is no constant, the sums of its columns are computed, and those of the left one's rows where
// it has a zero point, too.
func.func @computed(%x: tensor<2x4x3xui8>, %w: tensor<2x5x3xi8>, %z: tensor<i32>, %v: tensor<i32>) -> tensor<2x4x5xi32> {
  %wide = graph.cast %x to i32 : (tensor<2x4x3xui8>) -> tensor<2x4x3xi32>
  %a = graph.binary "sub" %wide, %z : (tensor<2x4x3xi32>, tensor<i32>) -> tensor<2x4x3xi32>
  %right = graph.cast %w to i32 : (tensor<2x5x3xi8>) -> tensor<2x5x3xi32>
  %less = graph.binary "sub" %right, %v : (tensor<2x5x3xi32>, tensor<i32>) -> tensor<2x5x3xi32>
  %b = graph.transpose %less {perm = array<i64: 0, 2, 1>} : (tensor<2x5x3xi32>) -> tensor<2x3x5xi32>
  %y = graph.matmul %a, %b : (tensor<2x4x3xi32>, tensor<2x3x5xi32>) -> tensor<2x4x5xi32>
  func.return %y : tensor<2x4x5xi32>
}

// CHECK-LABEL: @computed
// CHECK:      [[B:%\S+]] = graph.transpose %w {perm = array<i64: 0, 2, 1>} : (tensor<2x5x3xi8>) -> tensor<2x3x5xi8>
// CHECK-NEXT: [[S:%y\S*]] = graph.matmul %x, [[B]] {sums = i32} : (tensor<2x4x3xui8>, tensor<2x3x5xi8>)
// CHECK:      [[ROWS:%y\S*]] = graph.reduction "add" {{.*}} -> tensor<2x4x1xi32>
// CHECK:      [[R:%y\S*]] = graph.binary "mul" [[ROWS]], {{%\S+}}
// CHECK-NEXT: [[LESS:%y\S*]] = graph.binary "sub" [[S]], [[R]]
// CHECK:      [[COLUMNS:%y\S*]] = graph.reduction "add" {{.*}} -> tensor<2x1x5xi32>
// CHECK-NEXT: [[K:%y\S*]] = graph.constant #graph.inline<"3"> : tensor<i32>
// CHECK:      [[ALL:%y\S*]] = graph.binary "mul" [[K]], {{%\S+}}
// CHECK-NEXT: [[NUMBERS:%y\S*]] = graph.binary "sub" [[COLUMNS]], [[ALL]]
// CHECK:      [[C:%y\S*]] = graph.binary "mul" [[NUMBERS]], {{%\S+}}
// CHECK-NEXT: graph.binary "sub" [[LESS]], [[C]]

// A border of zeros is one of zero points.
func.func @windows(%x: tensor<4xui8>) -> tensor<4x2xi32> {
  %w = graph.constant #graph.inline<"1, -2, 3, 4, -5, 6"> : tensor<3x2xi32>
  %z = graph.constant #graph.inline<"7"> : tensor<i32>
  %wide = graph.cast %x to i32 : (tensor<4xui8>) -> tensor<4xi32>
  %d = graph.binary "sub" %wide, %z : (tensor<4xi32>, tensor<i32>) -> tensor<4xi32>
  %a = graph.compute "im2col" (%m, %k) {
    %zero = arith.constant 0 : i32
    %c4 = arith.constant 4 : index
    %i = arith.addi %m, %k : index
    %inside = arith.cmpi slt, %i, %c4 : index
    %e = graph.at %d[%i] where %inside else %zero : tensor<4xi32>
    graph.yield %e : i32
  } : tensor<4x3xi32>
  %y = graph.matmul %a, %w : (tensor<4x3xi32>, tensor<3x2xi32>) -> tensor<4x2xi32>
  func.return %y : tensor<4x2xi32>
}

// CHECK-LABEL: @windows
// CHECK:      [[A:%\S+]] = graph.compute "im2col"
// CHECK-NOT:    : i32
// CHECK:        [[BORDER:%\S+]] = scalar.constant 7 : ui8
// CHECK-NEXT:   graph.at %x[{{%\S+}}] where {{%\S+}} else [[BORDER]] : tensor<4xui8>
// CHECK:      graph.matmul [[A]], {{%\S+}} {sums = i32} : (tensor<4x3xui8>, tensor<3x2xi8>)

// Another border is none of bytes less zero points; a product of other integers stays.
func.func @others(%x: tensor<4xui8>, %a: tensor<4x3xi32>) -> (tensor<4x2xi32>, tensor<4x2xi32>) {
  %w = graph.constant #graph.inline<"1, -2, 3, 4, -5, 6"> : tensor<3x2xi32>
  %wide = graph.cast %x to i32 : (tensor<4xui8>) -> tensor<4xi32>
  %r = graph.compute "im2col" (%m, %k) {
    %one = arith.constant 1 : i32
    %c4 = arith.constant 4 : index
    %i = arith.addi %m, %k : index
    %inside = arith.cmpi slt, %i, %c4 : index
    %e = graph.at %wide[%i] where %inside else %one : tensor<4xi32>
    graph.yield %e : i32
  } : tensor<4x3xi32>
  %p = graph.matmul %r, %w : (tensor<4x3xi32>, tensor<3x2xi32>) -> tensor<4x2xi32>
  %q = graph.matmul %a, %w : (tensor<4x3xi32>, tensor<3x2xi32>) -> tensor<4x2xi32>
  func.return %p, %q : tensor<4x2xi32>, tensor<4x2xi32>
}

// CHECK-LABEL: @others
// CHECK:      %p = graph.matmul %r, %w
// CHECK-NEXT: %q = graph.matmul %a, %w
