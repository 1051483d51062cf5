// RUN: treadle-opt %s -p 'graph-quantized-products{target="cpu{matrix_unit=amx}"}' | filecheck %s

// A mask of a result stands behind the scaled sums. One of a dequantised operand, as a sum over a dimension that changes
// has it, leaves the product in floats: what is below the mask is no product of bytes by a scale.
func.func @main(%q: tensor<4x2xi8>, %n: tensor<i64>) -> (tensor<4x3xf32>, tensor<4x3xf32>)
    attributes {extents = ["n"], output_required = [#graph.required<d0 < 0>, #graph.required<d0 < 0>]} {
  %s = graph.constant #graph.inline<"0.5"> : tensor<f32>
  %x0 = graph.cast %q to i32 : (tensor<4x2xi8>) -> tensor<4x2xi32>
  %x1 = graph.cast %x0 to f32 : (tensor<4x2xi32>) -> tensor<4x2xf32>
  %x = graph.binary "mul" %x1, %s : (tensor<4x2xf32>, tensor<f32>) -> tensor<4x2xf32>
  %k = graph.constant #graph.inline<"1, -2, 3, 4, -5, 6"> : tensor<2x3xi8>
  %w0 = graph.cast %k to i32 : (tensor<2x3xi8>) -> tensor<2x3xi32>
  %w1 = graph.cast %w0 to f32 : (tensor<2x3xi32>) -> tensor<2x3xf32>
  %w = graph.binary "mul" %w1, %s : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  %y = graph.matmul %x, %w : (tensor<4x2xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
  %m = graph.mask %x below %n {dim = 1 : i64, fill = 0.0 : f32} : (tensor<4x2xf32>, tensor<i64>) -> tensor<4x2xf32>
  %z = graph.matmul %m, %w : (tensor<4x2xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
  %r = graph.mask %y below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<4x3xf32>, tensor<i64>) -> tensor<4x3xf32>
  func.return %r, %z : tensor<4x3xf32>, tensor<4x3xf32>
}

// CHECK:      output_required = [#graph.required<d0 < 0>, #graph.required<d0 < 0>]
// CHECK:      [[S:%\S+]] = graph.matmul %x0, %w0 : (tensor<4x2xi32>, tensor<2x3xi32>) -> tensor<4x3xi32>
// CHECK-NEXT: [[F:%\S+]] = graph.cast [[S]] to f32
// CHECK:      %y = graph.binary "mul" [[F]]
// CHECK-NEXT: %m = graph.mask %x below %n {dim = 1 : i64, fill = 0.000000e+00 : f32}
// CHECK-NEXT: %z = graph.matmul %m, %w : (tensor<4x2xf32>
// CHECK-NEXT: %r = graph.mask %y below %n {dim = 0 : i64
// CHECK-NEXT: func.return %r, %z
