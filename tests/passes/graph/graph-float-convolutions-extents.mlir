// RUN: treadle-opt %s -p 'graph-float-convolutions{target="cpu{matrix_unit=amx}"}' | filecheck %s

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
