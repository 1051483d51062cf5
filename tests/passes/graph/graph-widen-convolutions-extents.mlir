// RUN: treadle-opt %s -p 'graph-widen-convolutions{target="cpu{matrix_unit=amx}"}' | filecheck %s

// Masks stay between the casts, in the type that is stored: the convolution is widened behind one and before the other.
func.func @main(%x: tensor<1x4x8x8xf32>, %w: tensor<4x1x3x3xbf16>, %n: tensor<i64>) -> tensor<1x4x6x6xf32>
    attributes {extents = ["n"], output_required = [#graph.required<d3 < 0>]} {
  %s = graph.cast %x to bf16 : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xbf16>
  %m = graph.mask %s below %n {dim = 3 : i64, fill = 0.0 : bf16} : (tensor<1x4x8x8xbf16>, tensor<i64>) -> tensor<1x4x8x8xbf16>
  %c = graph.conv %m, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 4 : i64} : (tensor<1x4x8x8xbf16>, tensor<4x1x3x3xbf16>) -> tensor<1x4x6x6xbf16>
  %k = graph.mask %c below %n {dim = 3 : i64, fill = 0.0 : bf16} : (tensor<1x4x6x6xbf16>, tensor<i64>) -> tensor<1x4x6x6xbf16>
  %y = graph.cast %k to f32 : (tensor<1x4x6x6xbf16>) -> tensor<1x4x6x6xf32>
  func.return %y : tensor<1x4x6x6xf32>
}

// CHECK:      output_required = [#graph.required<d3 < 0>]
// CHECK:      %m = graph.mask {{%\S+}} below %n {dim = 3 : i64, fill = 0.000000e+00 : bf16}
// CHECK-NEXT: [[X:%\S+]] = graph.cast %m to f32
// CHECK:      [[C:%\S+]] = graph.conv [[X]]{{.*}} -> tensor<1x4x6x6xf32>
// CHECK-NEXT: [[N:%\S+]] = graph.cast [[C]] to bf16
// CHECK-NEXT: %k = graph.mask [[N]] below %n {dim = 3 : i64, fill = 0.000000e+00 : bf16}
// CHECK-NEXT: %y = graph.cast %k to f32
