// RUN: treadle-opt %s -p 'graph-legalize-types{target="cpu{matrix_unit=amx}"}' --split-input-file | filecheck %s

// The masks of a sum over a dimension that changes stay in the type that is stored, before the casts.
func.func @main(%a: tensor<8x4xbf16>, %b: tensor<4x8xbf16>, %n: tensor<i64>) -> tensor<8x8xbf16>
    attributes {extents = ["n"], output_required = [#graph.required<>]} {
  %m = graph.mask %a below %n {dim = 1 : i64, fill = 0.0 : bf16} : (tensor<8x4xbf16>, tensor<i64>) -> tensor<8x4xbf16>
  %k = graph.mask %b below %n {dim = 0 : i64, fill = 0.0 : bf16} : (tensor<4x8xbf16>, tensor<i64>) -> tensor<4x8xbf16>
  %y = graph.matmul %m, %k : (tensor<8x4xbf16>, tensor<4x8xbf16>) -> tensor<8x8xbf16>
  func.return %y : tensor<8x8xbf16>
}

// CHECK:      %m = graph.mask %a below %n {dim = 1 : i64, fill = 0.000000e+00 : bf16}
// CHECK-NEXT: %k = graph.mask %b below %n {dim = 0 : i64, fill = 0.000000e+00 : bf16}
// CHECK-NEXT: [[A:%\S+]] = graph.cast %m to f32
// CHECK-NEXT: [[B:%\S+]] = graph.cast %k to f32
// CHECK-NEXT: [[M:%\S+]] = graph.matmul [[A]], [[B]]
// CHECK-NEXT: %y = graph.cast [[M]] to bf16

// -----

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

// -----

// Of masked bytes nothing says that they fit a byte: that convolution is one of floats, behind its mask.
func.func @main(%q: tensor<1x2x4x4xi8>, %n: tensor<i64>) -> (tensor<1x2x4x4xi32>, tensor<1x2x4x4xi32>)
    attributes {extents = ["n"], output_required = [#graph.required<d3 < 0>, #graph.required<d3 < 0>]} {
  %w = graph.constant #graph.inline<"1, -2, 3, 4"> : tensor<2x2x1x1xi32>
  %x = graph.cast %q to i32 : (tensor<1x2x4x4xi8>) -> tensor<1x2x4x4xi32>
  %m = graph.mask %x below %n {dim = 3 : i64, fill = 0 : i32} : (tensor<1x2x4x4xi32>, tensor<i64>) -> tensor<1x2x4x4xi32>
  %a = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x2x4x4xi32>, tensor<2x2x1x1xi32>) -> tensor<1x2x4x4xi32>
  %b = graph.conv %m, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x2x4x4xi32>, tensor<2x2x1x1xi32>) -> tensor<1x2x4x4xi32>
  func.return %a, %b : tensor<1x2x4x4xi32>, tensor<1x2x4x4xi32>
}

// CHECK:      output_required = [#graph.required<d3 < 0>, #graph.required<d3 < 0>]
// CHECK:      %m = graph.mask %x below %n {dim = 3 : i64, fill = 0 : i32}
// CHECK-NEXT: %a = graph.conv %x, %w {{.*}} : (tensor<1x2x4x4xi32>
// CHECK-NEXT: [[X:%\S+]] = graph.cast %m to f64
// CHECK:      graph.conv [[X]], {{.*}} : (tensor<1x2x4x4xf64>
