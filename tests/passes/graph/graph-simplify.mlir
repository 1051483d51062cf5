// RUN: treadle-opt %s -p graph-simplify | filecheck %s

// A batch norm after a convolution leaves scaled weights and one bias.
func.func @batch_norm(%x: tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> {
  %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0"> : tensor<2x2x1x1xf32>
  %c = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<2x2x1x1xf32>) -> tensor<1x2x4x4xf32>
  %scale = graph.constant #graph.inline<"2.0, 3.0"> : tensor<2xf32>
  %bias = graph.constant #graph.inline<"1.0, 1.0"> : tensor<2xf32>
  %mean = graph.constant #graph.inline<"0.5, 0.0"> : tensor<2xf32>
  %variance = graph.constant #graph.inline<"4.0, 1.0"> : tensor<2xf32>
  %n = graph.batch_norm %c, %scale, %bias, %mean, %variance {epsilon = 0.0 : f64} : (tensor<1x2x4x4xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<1x2x4x4xf32>
  func.return %n : tensor<1x2x4x4xf32>
}
// CHECK:      func.func @batch_norm
// CHECK-NEXT:   [[W:%.*]] = graph.constant #graph.inline<"1.0, 2.0, 9.0, 12.0"> : tensor<2x2x1x1xf32>
// CHECK-NEXT:   [[B:%.*]] = graph.constant #graph.inline<"0.5, 1.0"> : tensor<2x1x1xf32>
// CHECK-NEXT:   [[C:%.*]] = graph.conv %x, [[W]]
// CHECK-NEXT:   %n = graph.binary "add" [[C]], [[B]]
// CHECK-NEXT:   func.return %n

// Identities vanish; times zero is no identity, for NaN * 0 is NaN.
func.func @identities(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
  %one = graph.constant #graph.inline<"1.0"> : tensor<f32>
  %zero = graph.constant #graph.inline<"0.0"> : tensor<f32>
  %a = graph.binary "mul" %one, %x : (tensor<f32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %b = graph.transpose %a {perm = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
  %c = graph.transpose %b {perm = array<i64: 1, 0>} : (tensor<3x2xf32>) -> tensor<2x3xf32>
  %d = graph.reshape %c {shape = array<i64: 6>} : (tensor<2x3xf32>) -> tensor<6xf32>
  %e = graph.reshape %d {shape = array<i64: 2, 3>} : (tensor<6xf32>) -> tensor<2x3xf32>
  %f = graph.binary "mul" %e, %zero : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  func.return %e, %f : tensor<2x3xf32>, tensor<2x3xf32>
}
// CHECK:      func.func @identities
// CHECK-NEXT:   %zero = graph.constant
// CHECK-NEXT:   %f = graph.binary "mul" %x, %zero
// CHECK-NEXT:   func.return %x, %f
