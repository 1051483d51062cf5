// RUN: treadle-opt %s -p graph-channels-last | filecheck %s

// The image is transposed once; what follows stays in this order, and is transposed back for the function's result.
func.func @windows(%x: tensor<2x4x8x8xf32>, %w: tensor<8x4x3x3xf32>, %b: tensor<8x1x1xf32>) -> tensor<2x8x2x2xf32> {
  %c = graph.conv %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<2x4x8x8xf32>, tensor<8x4x3x3xf32>) -> tensor<2x8x4x4xf32>
  %a = graph.binary "add" %c, %b : (tensor<2x8x4x4xf32>, tensor<8x1x1xf32>) -> tensor<2x8x4x4xf32>
  %y = graph.pool "max" %a {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, ceil = 0 : i64, count_pad = 0 : i64} : (tensor<2x8x4x4xf32>) -> tensor<2x8x2x2xf32>
  func.return %y : tensor<2x8x2x2xf32>
}
// CHECK:      func.func @windows
// CHECK-NEXT:   [[X:%.*]] = graph.transpose %x {perm = array<i64: 0, 2, 3, 1>}
// CHECK-NEXT:   [[I:%.*]] = graph.compute "im2col"
// CHECK:          graph.at [[X]]{{.*}} where {{.*}} else
// CHECK:        } : tensor<32x36xf32>
// CHECK-NEXT:   [[T:%.*]] = graph.transpose %w {perm = array<i64: 2, 3, 1, 0>}
// CHECK-NEXT:   [[W:%.*]] = graph.reshape [[T]] {shape = array<i64: 36, 8>}
// CHECK-NEXT:   [[P:%.*]] = graph.matmul [[I]], [[W]]
// CHECK-NEXT:   [[C:%.*]] = graph.reshape [[P]] {shape = array<i64: 2, 4, 4, 8>}
// CHECK:        [[B:%.*]] = graph.transpose {{.*}} -> tensor<1x1x1x8xf32>
// CHECK-NEXT:   [[A:%.*]] = graph.binary "add" [[C]], [[B]]
// CHECK-NEXT:   [[M:%.*]] = graph.compute "pool_max" ([[N:%.*]], [[H:%.*]], [[V:%.*]], [[D:%.*]]) {
// CHECK:          graph.at [[A]][{{.*}}, [[D]]]
// CHECK:        } : tensor<2x2x2x8xf32>
// CHECK-NEXT:   %y = graph.transpose [[M]] {perm = array<i64: 0, 3, 1, 2>}

// A depthwise convolution is its definition, whose weights are transposed, too; the mean over pixels gives rows as it is.
func.func @depthwise(%x: tensor<1x4x8x8xf32>, %w: tensor<4x1x3x3xf32>) -> tensor<1x4xf32> {
  %c = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 4 : i64} : (tensor<1x4x8x8xf32>, tensor<4x1x3x3xf32>) -> tensor<1x4x6x6xf32>
  %y = graph.reduction "add" %c {dims = array<i64: 2, 3>, keep = 0 : i64} : (tensor<1x4x6x6xf32>) -> tensor<1x4xf32>
  func.return %y : tensor<1x4xf32>
}
// CHECK:      func.func @depthwise
// CHECK-NEXT:   graph.transpose %x {perm = array<i64: 0, 2, 3, 1>}
// CHECK-NEXT:   graph.transpose %w {perm = array<i64: 2, 3, 1, 0>}
// CHECK-NEXT:   [[C:%.*]] = graph.compute "conv"
// CHECK:        } : tensor<1x6x6x4xf32>
// CHECK-NEXT:   %y = graph.reduction "add" [[C]] {dims = array<i64: 1, 2>, keep = 0 : i64}

// Without a convolution nothing is transposed.
func.func @pool(%x: tensor<1x4x8x8xf32>) -> tensor<1x4x4x4xf32> {
  %y = graph.pool "max" %x {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, ceil = 0 : i64, count_pad = 0 : i64} : (tensor<1x4x8x8xf32>) -> tensor<1x4x4x4xf32>
  func.return %y : tensor<1x4x4x4xf32>
}
// CHECK:      func.func @pool
// CHECK-NEXT:   graph.pool "max" %x

// Nor is anything of unknown extents.
func.func @symbolic(%x: tensor<?x4x8x8xf32>, %w: tensor<4x4x1x1xf32>) -> tensor<?x4x8x8xf32> {
  %y = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<?x4x8x8xf32>, tensor<4x4x1x1xf32>) -> tensor<?x4x8x8xf32>
  func.return %y : tensor<?x4x8x8xf32>
}
// CHECK:      func.func @symbolic
// CHECK-NEXT:   graph.conv %x
