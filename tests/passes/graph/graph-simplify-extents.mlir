// RUN: treadle-opt %s -p graph-simplify --split-input-file | filecheck %s

// What stands before and behind a mask cancels; the mask and its dimension stay, and so do the required regions of the results.
// -0 + 0 is 0, so that the sum stays.
func.func @main(%x: tensor<2x8x4xf32>, %n: tensor<i64>) -> (tensor<2x8x4xf32>, tensor<16x4xf32>, tensor<2x4x8xf32>)
    attributes {extents = ["n"], output_required = [#graph.required<d1 < 0>, #graph.required<d0 mod 8 < 0>, #graph.required<d2 < 0>]} {
  %zero = graph.constant #graph.inline<"0.0"> : tensor<f32>
  %one = graph.constant #graph.inline<"1.0"> : tensor<f32>
  %a = graph.binary "mul" %x, %one : (tensor<2x8x4xf32>, tensor<f32>) -> tensor<2x8x4xf32>
  %m = graph.mask %a below %n {dim = 1 : i64, fill = 0.0 : f32} : (tensor<2x8x4xf32>, tensor<i64>) -> tensor<2x8x4xf32>
  %r = graph.reshape %m {shape = array<i64: 16, 4>} : (tensor<2x8x4xf32>) -> tensor<16x4xf32>
  %s = graph.reshape %r {shape = array<i64: 2, 8, 4>} : (tensor<16x4xf32>) -> tensor<2x8x4xf32>
  %t = graph.transpose %s {perm = array<i64: 0, 2, 1>} : (tensor<2x8x4xf32>) -> tensor<2x4x8xf32>
  %u = graph.transpose %t {perm = array<i64: 0, 2, 1>} : (tensor<2x4x8xf32>) -> tensor<2x8x4xf32>
  %b = graph.binary "add" %u, %zero : (tensor<2x8x4xf32>, tensor<f32>) -> tensor<2x8x4xf32>
  func.return %b, %r, %t : tensor<2x8x4xf32>, tensor<16x4xf32>, tensor<2x4x8xf32>
}

// CHECK:      output_required = [#graph.required<d1 < 0>, #graph.required<d0 mod 8 < 0>, #graph.required<d2 < 0>]
// CHECK:      %m = graph.mask %x below %n {dim = 1 : i64, fill = 0.000000e+00 : f32}
// CHECK-NEXT: %r = graph.reshape %m {shape = array<i64: 16, 4>}
// CHECK-NEXT: %t = graph.transpose %m {perm = array<i64: 0, 2, 1>}
// CHECK-NEXT: %b = graph.binary "add" %m, %zero
// CHECK-NEXT: func.return %b, %r, %t

// -----

// A batch norm does not go into filters through a mask: what the mask fills in is scaled, too.
func.func @main(%x: tensor<1x2x4x4xf32>, %n: tensor<i64>) -> tensor<1x2x4x4xf32> attributes {extents = ["n"]} {
  %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0"> : tensor<2x2x1x1xf32>
  %scale = graph.constant #graph.inline<"2.0, 3.0"> : tensor<2xf32>
  %bias = graph.constant #graph.inline<"1.0, 1.0"> : tensor<2xf32>
  %mean = graph.constant #graph.inline<"0.5, 0.0"> : tensor<2xf32>
  %variance = graph.constant #graph.inline<"4.0, 1.0"> : tensor<2xf32>
  %m = graph.mask %x below %n {dim = 3 : i64, fill = 0.0 : f32} : (tensor<1x2x4x4xf32>, tensor<i64>) -> tensor<1x2x4x4xf32>
  %c = graph.conv %m, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<2x2x1x1xf32>) -> tensor<1x2x4x4xf32>
  %k = graph.mask %c below %n {dim = 3 : i64, fill = 0.0 : f32} : (tensor<1x2x4x4xf32>, tensor<i64>) -> tensor<1x2x4x4xf32>
  %y = graph.batch_norm %k, %scale, %bias, %mean, %variance {epsilon = 0.0 : f64} : (tensor<1x2x4x4xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<1x2x4x4xf32>
  func.return %y : tensor<1x2x4x4xf32>
}

// CHECK:      %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0">
// CHECK:      %c = graph.conv %m, %w
// CHECK-NEXT: %k = graph.mask %c below %n {dim = 3 : i64, fill = 0.000000e+00 : f32}
// CHECK:      [[S:%\S+]] = graph.binary "mul" %k, {{%\S+}}
// CHECK-NEXT: %y = graph.binary "add" [[S]]
