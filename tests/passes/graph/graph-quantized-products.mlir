// RUN: treadle-opt %s -p 'graph-quantized-products{target="cpu{matrix_unit=amx}"}' | filecheck %s
// RUN: treadle-opt %s -p 'graph-quantized-products{target="cpu{matrix_unit=vnni}"}' | filecheck %s
// RUN: treadle-opt %s -p graph-quantized-products | filecheck %s --check-prefix=NONE

// The weights' scales are those of the result's channels. What is quantised again divides the constants that scale the
// sums and shift them.
func.func @conv(%q: tensor<1x2x4x4xui8>) -> tensor<1x3x4x4xf32> {
  %s = graph.constant #graph.inline<"0.5"> : tensor<f32>
  %z = graph.constant #graph.inline<"128"> : tensor<i32>
  %x0 = graph.cast %q to i32 : (tensor<1x2x4x4xui8>) -> tensor<1x2x4x4xi32>
  %x1 = graph.binary "sub" %x0, %z : (tensor<1x2x4x4xi32>, tensor<i32>) -> tensor<1x2x4x4xi32>
  %x2 = graph.cast %x1 to f32 : (tensor<1x2x4x4xi32>) -> tensor<1x2x4x4xf32>
  %x = graph.binary "mul" %x2, %s : (tensor<1x2x4x4xf32>, tensor<f32>) -> tensor<1x2x4x4xf32>
  %k = graph.constant #graph.inline<"1, -2, 3, 4, -5, 6"> : tensor<3x2x1x1xi8>
  %t = graph.constant #graph.inline<"1.0, 2.0, 3.0"> : tensor<3x1x1x1xf32>
  %w0 = graph.cast %k to i32 : (tensor<3x2x1x1xi8>) -> tensor<3x2x1x1xi32>
  %w1 = graph.cast %w0 to f32 : (tensor<3x2x1x1xi32>) -> tensor<3x2x1x1xf32>
  %w = graph.binary "mul" %w1, %t : (tensor<3x2x1x1xf32>, tensor<3x1x1x1xf32>) -> tensor<3x2x1x1xf32>
  %c = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<3x2x1x1xf32>) -> tensor<1x3x4x4xf32>
  %b = graph.constant #graph.inline<"1.0, 2.0, 3.0"> : tensor<3x1x1xf32>
  %sum = graph.binary "add" %c, %b : (tensor<1x3x4x4xf32>, tensor<3x1x1xf32>) -> tensor<1x3x4x4xf32>
  %relu = graph.unary "relu" %sum : (tensor<1x3x4x4xf32>) -> tensor<1x3x4x4xf32>
  %y = graph.binary "div" %relu, %s : (tensor<1x3x4x4xf32>, tensor<f32>) -> tensor<1x3x4x4xf32>
  %r = graph.unary "round" %y : (tensor<1x3x4x4xf32>) -> tensor<1x3x4x4xf32>
  func.return %r : tensor<1x3x4x4xf32>
}

// CHECK-LABEL: @conv
// CHECK:      [[T:%\S+]] = graph.reshape %t {shape = array<i64: 3, 1, 1>}
// CHECK-NEXT: [[C:%\S+]] = graph.conv %x1, %w0 {{.*}} : (tensor<1x2x4x4xi32>, tensor<3x2x1x1xi32>) -> tensor<1x3x4x4xi32>
// CHECK-NEXT: [[F:%\S+]] = graph.cast [[C]] to f32
// CHECK-NEXT: [[S:%\S+]] = graph.reshape %s {shape = array<i64>}
// CHECK-NEXT: [[M:%\S+]] = graph.binary "mul" [[S]], [[T]] : (tensor<f32>, tensor<3x1x1xf32>) -> tensor<3x1x1xf32>
// CHECK:      [[D:%\S+]] = graph.binary "div" [[M]], {{%\S+}} : (tensor<3x1x1xf32>, tensor<f32>)
// CHECK-NEXT: [[P:%\S+]] = graph.binary "mul" [[F]], [[D]]
// CHECK:      [[E:%\S+]] = graph.binary "div" %b, {{%\S+}} : (tensor<3x1x1xf32>, tensor<f32>)
// CHECK-NEXT: [[Q:%\S+]] = graph.binary "add" [[P]], [[E]]
// CHECK-NEXT: %y = graph.unary "relu" [[Q]]
// CHECK-NEXT: %r = graph.unary "round" %y

// Groups are computed in f32, whose sums of few integers are exact; scales that differ in a sum leave a product as it is.
func.func @others(%q: tensor<1x2x4x4xi8>, %p: tensor<2x2xi8>) -> (tensor<1x2x4x4xf32>, tensor<2x2xf32>, tensor<1x2x3x3xf32>) {
  %s = graph.constant #graph.inline<"0.5"> : tensor<f32>
  %x0 = graph.cast %q to i32 : (tensor<1x2x4x4xi8>) -> tensor<1x2x4x4xi32>
  %x1 = graph.cast %x0 to f32 : (tensor<1x2x4x4xi32>) -> tensor<1x2x4x4xf32>
  %x = graph.binary "mul" %x1, %s : (tensor<1x2x4x4xf32>, tensor<f32>) -> tensor<1x2x4x4xf32>
  %k = graph.constant #graph.inline<"1, -2"> : tensor<2x1x1x1xi8>
  %w0 = graph.cast %k to i32 : (tensor<2x1x1x1xi8>) -> tensor<2x1x1x1xi32>
  %w1 = graph.cast %w0 to f32 : (tensor<2x1x1x1xi32>) -> tensor<2x1x1x1xf32>
  %w = graph.binary "mul" %w1, %s : (tensor<2x1x1x1xf32>, tensor<f32>) -> tensor<2x1x1x1xf32>
  %c = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x2x4x4xf32>, tensor<2x1x1x1xf32>) -> tensor<1x2x4x4xf32>
  %a0 = graph.cast %p to i32 : (tensor<2x2xi8>) -> tensor<2x2xi32>
  %a1 = graph.cast %a0 to f32 : (tensor<2x2xi32>) -> tensor<2x2xf32>
  %a = graph.binary "mul" %a1, %s : (tensor<2x2xf32>, tensor<f32>) -> tensor<2x2xf32>
  %m = graph.constant #graph.inline<"1, -2, 3, 4"> : tensor<2x2xi8>
  %u = graph.constant #graph.inline<"1.0, 2.0"> : tensor<2x1xf32>
  %b0 = graph.cast %m to i32 : (tensor<2x2xi8>) -> tensor<2x2xi32>
  %b1 = graph.cast %b0 to f32 : (tensor<2x2xi32>) -> tensor<2x2xf32>
  %b = graph.binary "mul" %b1, %u : (tensor<2x2xf32>, tensor<2x1xf32>) -> tensor<2x2xf32>
  %d = graph.matmul %a, %b : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  %e = graph.pool "max" %x {kernel = array<i64: 2, 2>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, ceil = 0 : i64, count_pad = 0 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x3x3xf32>
  func.return %c, %d, %e : tensor<1x2x4x4xf32>, tensor<2x2xf32>, tensor<1x2x3x3xf32>
}

// CHECK-LABEL: @others
// CHECK:      [[G:%\S+]] = graph.conv {{%\S+}}, {{%\S+}} {{.*}}groups = 2 : i64} : (tensor<1x2x4x4xf32>, tensor<2x1x1x1xf32>)
// CHECK:      graph.binary "mul" [[G]]
// CHECK:      graph.matmul %a, %b : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
// CHECK:      [[B:%\S+]] = graph.cast %x0 to f32
// CHECK-NEXT: [[X:%\S+]] = graph.pool "max" [[B]]
// CHECK-NEXT: graph.binary "mul" [[X]], %s

// NONE-NOT: graph.conv {{.*}}xi32>)

// A maximum of what was rounded to f16 stays: the scale would be one of f32.
func.func @rounded(%q: tensor<1x2x4x4xi8>) -> tensor<1x2x3x3xf16> {
  %s = graph.constant #graph.inline<"0.5"> : tensor<f32>
  %i = graph.cast %q to i32 : (tensor<1x2x4x4xi8>) -> tensor<1x2x4x4xi32>
  %f = graph.cast %i to f32 : (tensor<1x2x4x4xi32>) -> tensor<1x2x4x4xf32>
  %x = graph.binary "mul" %f, %s : (tensor<1x2x4x4xf32>, tensor<f32>) -> tensor<1x2x4x4xf32>
  %h = graph.cast %x to f16 : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf16>
  %y = graph.pool "max" %h {kernel = array<i64: 2, 2>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, ceil = 0 : i64, count_pad = 0 : i64} : (tensor<1x2x4x4xf16>) -> tensor<1x2x3x3xf16>
  func.return %y : tensor<1x2x3x3xf16>
}

// CHECK-LABEL: @rounded
// CHECK:      graph.pool "max" %h
