// RUN: treadle-opt %s -p graph-block-channels{target="sse2"} | filecheck %s

// Columns beyond the extent are masked where channels are not in blocks: the image enters behind its mask, and leaves
// before the next one.
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
// CHECK-NEXT: [[A:%\S+]] = graph.reshape %m {shape = array<i64: 1, 2, 4, 6, 16>}
// CHECK-NEXT: [[X:%\S+]] = graph.transpose [[A]] {perm = array<i64: 0, 1, 3, 4, 2>}
// CHECK:      graph.pad "constant" [[X]]
// CHECK:      %a = graph.reshape {{%\S+}} {shape = array<i64: 1, 12, 6, 16>}
// CHECK-NEXT: %k = graph.mask %a below %n {dim = 3 : i64, fill = 0xff800000 : f32}
// CHECK-NEXT: %y = graph.pool "max" %k
