// RUN: treadle-opt %s -p graph-decompose{rows=true} | filecheck %s

// The mask of a row stays before its parts. A mean's divisor is the largest extent: importers of ranges divide by the
// call's, and write no mean.
func.func @main(%x: tensor<4x8xf32>, %n: tensor<i64>) -> (tensor<4x8xf32>, tensor<4xf32>)
    attributes {extents = ["n"], output_required = [#graph.required<d1 < 0>, #graph.required<>]} {
  %m = graph.mask %x below %n {dim = 1 : i64, fill = 0xFF800000 : f32} : (tensor<4x8xf32>, tensor<i64>) -> tensor<4x8xf32>
  %y = graph.softmax %m {dim = 1 : i64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %z = graph.mask %x below %n {dim = 1 : i64, fill = 0.0 : f32} : (tensor<4x8xf32>, tensor<i64>) -> tensor<4x8xf32>
  %w = graph.reduction "mean" %z {dims = array<i64: 1>, keep = 0 : i64} : (tensor<4x8xf32>) -> tensor<4xf32>
  func.return %y, %w : tensor<4x8xf32>, tensor<4xf32>
}

// CHECK:      output_required = [#graph.required<d1 < 0>, #graph.required<>]
// CHECK:      %m = graph.mask %x below %n {dim = 1 : i64, fill = 0xff800000 : f32}
// CHECK-NEXT: [[MOST:%\S+]] = graph.reduction "max" %m
// CHECK-NEXT: [[D:%\S+]] = graph.binary "sub" %m, [[MOST]]
// CHECK-NEXT: [[E:%\S+]] = graph.unary "exp" [[D]]
// CHECK-NEXT: [[S:%\S+]] = graph.reduction "add" [[E]]
// CHECK-NEXT: %y = graph.binary "div" [[E]], [[S]]
// CHECK-NEXT: %z = graph.mask %x below %n {dim = 1 : i64, fill = 0.000000e+00 : f32}
// CHECK-NEXT: [[A:%\S+]] = graph.reduction "add" %z
// CHECK-NEXT: [[N:%\S+]] = graph.constant #graph.inline<"8.0">
// CHECK-NEXT: %w = graph.binary "div" [[A]], [[N]]

// A transposed convolution stays: what is required of its result is not a part of each of the strides' pixels.
func.func @transposed(%x: tensor<1x1x3xf32>, %n: tensor<i64>) -> tensor<1x2x6xf32>
    attributes {extents = ["n"], output_required = [#graph.required<d2 < 0>]} {
  %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0"> : tensor<1x2x4xf32>
  %y = graph.conv_transpose %x, %w {strides = array<i64: 2>, pads = array<i64: 1, 1>, dilations = array<i64: 1>,
      groups = 1 : i64, output_padding = array<i64: 0>} : (tensor<1x1x3xf32>, tensor<1x2x4xf32>) -> tensor<1x2x6xf32>
  func.return %y : tensor<1x2x6xf32>
}

// CHECK-LABEL: func.func @transposed
// CHECK:         %y = graph.conv_transpose
