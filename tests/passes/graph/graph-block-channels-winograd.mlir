// RUN: treadle-opt %s -p 'graph-fold-constants,graph-block-channels{target="sse2" convolution="winograd2"}' | filecheck %s

// 64 input channels are 16 blocks of four; 14 x 17 pixels are 7 x 9 tiles of 2 x 2, of which the last column is in part.
func.func @tiles(%x: tensor<2x64x14x17xf32>) -> tensor<2x64x14x17xf32> {
  %v = graph.constant #graph.inline<"1.0"> : tensor<f32>
  %q = graph.broadcast %v {shape = array<i64: 32, 32, 3, 3>} : (tensor<f32>) -> tensor<32x32x3x3xf32>
  %h = graph.concat %q, %q {dim = 0 : i64} : (tensor<32x32x3x3xf32>, tensor<32x32x3x3xf32>) -> tensor<64x32x3x3xf32>
  %w = graph.concat %h, %h {dim = 1 : i64} : (tensor<64x32x3x3xf32>, tensor<64x32x3x3xf32>) -> tensor<64x64x3x3xf32>
  %c = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<2x64x14x17xf32>, tensor<64x64x3x3xf32>) -> tensor<2x64x14x17xf32>
  %y = graph.unary "relu" %c : (tensor<2x64x14x17xf32>) -> tensor<2x64x14x17xf32>
  func.return %y : tensor<2x64x14x17xf32>
}
// CHECK:      func.func @tiles
// CHECK:        [[X:%.*]] = graph.transpose {{.*}} -> tensor<2x16x14x17x4xf32>
// CHECK:        [[U:%.*]] = graph.constant {{.*}} : tensor<16x64x64xf32>
// CHECK-NEXT:   [[C:%.*]] = graph.winograd_conv [[X]], [[U]] {outputs = 2 : i64, pads = array<i64: 1, 1, 1, 1>} {{.*}} -> tensor<2x16x14x17x4xf32>
// CHECK-NEXT:   graph.unary "relu" [[C]]

// Filters that are computed, and strides, stay direct.
func.func @direct(%x: tensor<1x32x14x14xf32>, %w: tensor<32x32x3x3xf32>) -> (tensor<1x32x14x14xf32>, tensor<1x32x7x7xf32>) {
  %v = graph.constant #graph.inline<"1.0"> : tensor<f32>
  %f = graph.broadcast %v {shape = array<i64: 32, 32, 3, 3>} : (tensor<f32>) -> tensor<32x32x3x3xf32>
  %y = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x32x14x14xf32>, tensor<32x32x3x3xf32>) -> tensor<1x32x14x14xf32>
  %z = graph.conv %x, %f {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x32x14x14xf32>, tensor<32x32x3x3xf32>) -> tensor<1x32x7x7xf32>
  func.return %y, %z : tensor<1x32x14x14xf32>, tensor<1x32x7x7xf32>
}
// CHECK:      func.func @direct
// CHECK:        graph.compute "im2col"
// CHECK:        graph.compute "im2col"
