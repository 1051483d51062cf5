// RUN: treadle-opt %s -p 'graph-pack-tiles{target="cpu{matrix_unit=amx}"}' | filecheck %s
// RUN: treadle-opt %s -p 'graph-pack-tiles{target="cpu{matrix_unit=vnni}"}' | filecheck %s --check-prefix=BYTES
// RUN: treadle-opt %s -p graph-pack-tiles | filecheck %s --check-prefix=NONE

// A reader that widens takes the sum, also behind a reshape; one that does not takes it rounded. A product of f32, and
// one of two tensors that are not constant, stay.
func.func @main(%a: tensor<4x3xbf16>, %b: tensor<3x2xbf16>, %c: tensor<4x3xf32>)
    -> (tensor<2x4xf32>, tensor<4x2xbf16>, tensor<4x2xbf16>, tensor<4x2xf32>) {
  %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0, 5.0, 6.0"> : tensor<3x2xbf16>
  %v = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0, 5.0, 6.0"> : tensor<3x2xf32>
  %x = graph.matmul %a, %w : (tensor<4x3xbf16>, tensor<3x2xbf16>) -> tensor<4x2xbf16>
  %r = graph.reshape %x {shape = array<i64: 2, 4>} : (tensor<4x2xbf16>) -> tensor<2x4xbf16>
  %wide = graph.cast %r to f32 : (tensor<2x4xbf16>) -> tensor<2x4xf32>
  %y = graph.matmul %a, %b : (tensor<4x3xbf16>, tensor<3x2xbf16>) -> tensor<4x2xbf16>
  %z = graph.matmul %c, %v : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  func.return %wide, %x, %y, %z : tensor<2x4xf32>, tensor<4x2xbf16>, tensor<4x2xbf16>, tensor<4x2xf32>
}

// CHECK:      %w = graph.constant {{.*}} : tensor<1x16x32x2xbf16>
// CHECK:      [[SUM:%x\S*]] = graph.packed_matmul %a, %w {columns = 2 : i64} : (tensor<4x3xbf16>, tensor<1x16x32x2xbf16>) -> tensor<4x2xf32>
// CHECK-NEXT: [[ROUNDED:%x\S*]] = graph.cast [[SUM]] to bf16 : (tensor<4x2xf32>) -> tensor<4x2xbf16>
// CHECK-NEXT: [[WIDE:%r\S*]] = graph.reshape [[SUM]] {shape = array<i64: 2, 4>} : (tensor<4x2xf32>) -> tensor<2x4xf32>
// CHECK-NEXT: %y = graph.matmul %a, %b : (tensor<4x3xbf16>
// CHECK-NEXT: %z = graph.matmul %c, %v : (tensor<4x3xf32>
// CHECK-NEXT: func.return [[WIDE]], [[ROUNDED]], %y, %z

// BYTES-NOT: packed_matmul
// BYTES:     func.func @bytes
// BYTES:     graph.packed_matmul

// Bytes less a zero point, behind a reshape, by numbers of nine bits, of which each column fits a byte once its lowest
// one is taken off.
func.func @bytes(%x: tensor<2x2x2xui8>, %z: tensor<i32>) -> tensor<4x2xi32> {
  %w = graph.constant #graph.inline<"-90, 50, 100, -200"> : tensor<2x2xi32>
  %wide = graph.cast %x to i32 : (tensor<2x2x2xui8>) -> tensor<2x2x2xi32>
  %d = graph.binary "sub" %wide, %z : (tensor<2x2x2xi32>, tensor<i32>) -> tensor<2x2x2xi32>
  %a = graph.reshape %d {shape = array<i64: 4, 2>} : (tensor<2x2x2xi32>) -> tensor<4x2xi32>
  %y = graph.matmul %a, %w : (tensor<4x2xi32>, tensor<2x2xi32>) -> tensor<4x2xi32>
  func.return %y : tensor<4x2xi32>
}

// CHECK:      func.func @bytes
// CHECK:      [[A:%\S+]] = graph.reshape %x {shape = array<i64: 4, 2>} : (tensor<2x2x2xui8>) -> tensor<4x2xui8>
// CHECK:      [[S:%y\S*]] = graph.packed_matmul [[A]], {{%\S+}} {columns = 2 : i64} : (tensor<4x2xui8>, tensor<1x16x32x4xui8>) -> tensor<4x2xi32>
// CHECK:      [[ROWS:%y\S*]] = graph.reduction "add"
// CHECK:      [[LOWEST:%y\S*]] = graph.constant #graph.inline<"-90, -200"> : tensor<2xi32>
// CHECK-NEXT: [[ADDED:%y\S*]] = graph.binary "mul" [[ROWS]], [[LOWEST]]
// CHECK-NEXT: [[SUM:%y\S*]] = graph.binary "add" [[S]], [[ADDED]]
// CHECK-NEXT: [[COLUMNS:%y\S*]] = graph.constant #graph.inline<"10, -150"> : tensor<2xi32>
// CHECK-NEXT: [[Z:%y\S*]] = graph.reshape %z {shape = array<i64>}
// CHECK-NEXT: [[TERMS:%y\S*]] = graph.binary "mul" [[Z]], [[COLUMNS]]
// CHECK-NEXT: graph.binary "sub" [[SUM]], [[TERMS]]

// NONE-NOT: packed_matmul

// A border of zeros is one of zero points, and windows are read of bytes.
func.func @windows(%x: tensor<1x1x2x2xi8>) -> tensor<4x2xi32> {
  %w = graph.constant #graph.inline<"1, -2, 3, 4, 5, 6, 7, 8"> : tensor<4x2xi32>
  %z = graph.constant #graph.inline<"3"> : tensor<i32>
  %zero = graph.constant #graph.inline<"0"> : tensor<i32>
  %wide = graph.cast %x to i32 : (tensor<1x1x2x2xi8>) -> tensor<1x1x2x2xi32>
  %d = graph.binary "sub" %wide, %z : (tensor<1x1x2x2xi32>, tensor<i32>) -> tensor<1x1x2x2xi32>
  %p = graph.pad "constant" %d, %zero {pads = array<i64: 0, 0, 0, 0, 0, 0, 1, 1>} : (tensor<1x1x2x2xi32>, tensor<i32>) -> tensor<1x1x3x3xi32>
  %a = graph.compute "im2col" (%m, %k) {
    %c0 = arith.constant 0 : index
    %c2 = arith.constant 2 : index
    %i = arith.divui %m, %c2 : index
    %j = arith.remui %m, %c2 : index
    %u = arith.divui %k, %c2 : index
    %v = arith.remui %k, %c2 : index
    %row = arith.addi %i, %u : index
    %column = arith.addi %j, %v : index
    %e = graph.at %p[%c0, %c0, %row, %column] : tensor<1x1x3x3xi32>
    graph.yield %e : i32
  } : tensor<4x4xi32>
  %y = graph.matmul %a, %w : (tensor<4x4xi32>, tensor<4x2xi32>) -> tensor<4x2xi32>
  func.return %y : tensor<4x2xi32>
}

// CHECK:      func.func @windows
// CHECK:      [[Z:%\S+]] = graph.reshape %z {shape = array<i64>}
// CHECK-NEXT: [[B:%\S+]] = graph.cast [[Z]] to i8
// CHECK-NEXT: [[P:%\S+]] = graph.pad "constant" %x, [[B]] {{.*}} -> tensor<1x1x3x3xi8>
// CHECK:      [[A:%\S+]] = graph.compute "im2col"
// CHECK:        graph.at [[P]]
// CHECK:      [[S:%y\S*]] = graph.packed_matmul [[A]], {{%\S+}} {columns = 2 : i64} : (tensor<4x4xi8>
// CHECK-NEXT: [[T:%y\S*]] = graph.constant #graph.inline<"48, 48"> : tensor<2xi32>
// CHECK-NEXT: graph.binary "sub" [[S]], [[T]]
