// RUN: treadle-opt %s -p graph-channels-last | filecheck %s

// Columns beyond the extent are masked where the image has its channels first; what is masked before a pool leaves the
// order for its mask.
func.func @main(%x: tensor<1x8x6x16xf32>, %w: tensor<12x8x3x3xf32>, %b: tensor<12x1x1xf32>, %n: tensor<i64>) -> tensor<1x12x6x16xf32>
    attributes {extents = ["n"], output_required = [#graph.required<d3 < 0>]} {
  %m = graph.mask %x below %n {dim = 3 : i64, fill = 0.0 : f32} : (tensor<1x8x6x16xf32>, tensor<i64>) -> tensor<1x8x6x16xf32>
  %c = graph.conv %m, %w {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x8x6x16xf32>, tensor<12x8x3x3xf32>) -> tensor<1x12x6x16xf32>
  %a = graph.binary "add" %c, %b : (tensor<1x12x6x16xf32>, tensor<12x1x1xf32>) -> tensor<1x12x6x16xf32>
  %k = graph.mask %a below %n {dim = 3 : i64, fill = 0xFF800000 : f32} : (tensor<1x12x6x16xf32>, tensor<i64>) -> tensor<1x12x6x16xf32>
  %y = graph.pool "max" %k {kernel = array<i64: 3, 3>, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, ceil = 0 : i64, count_pad = 0 : i64} : (tensor<1x12x6x16xf32>) -> tensor<1x12x6x16xf32>
  func.return %y : tensor<1x12x6x16xf32>
}

// CHECK:      output_required = [#graph.required<d3 < 0>]
// CHECK:      %m = graph.mask %x below %n {dim = 3 : i64, fill = 0.000000e+00 : f32}
// CHECK-NEXT: [[X:%\S+]] = graph.transpose %m {perm = array<i64: 0, 2, 3, 1>}
// CHECK-NEXT: graph.compute "im2col"
// CHECK:        graph.at [[X]]
// CHECK:      %a = graph.transpose {{%\S+}} {perm = array<i64: 0, 3, 1, 2>}
// CHECK-NEXT: %k = graph.mask %a below %n {dim = 3 : i64, fill = 0xff800000 : f32}
// CHECK-NEXT: %y = graph.pool "max" %k
