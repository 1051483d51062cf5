// RUN: treadle-opt %s -p graph-conv-to-matmul | filecheck %s

// Many pixels: the filters are the left operand, the image stays as it is.
func.func @pointwise(%x: tensor<1x4x14x14xf32>, %w: tensor<8x4x1x1xf32>) -> tensor<1x8x14x14xf32> {
  %y = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x4x14x14xf32>, tensor<8x4x1x1xf32>) -> tensor<1x8x14x14xf32>
  func.return %y : tensor<1x8x14x14xf32>
}
// CHECK:      func.func @pointwise
// CHECK-NEXT:   [[W:%.*]] = graph.reshape %w {shape = array<i64: 8, 4>}
// CHECK-NEXT:   [[X:%.*]] = graph.reshape %x {shape = array<i64: 4, 196>}
// CHECK-NEXT:   [[P:%.*]] = graph.matmul [[W]], [[X]]
// CHECK-NEXT:   %y = graph.reshape [[P]] {shape = array<i64: 1, 8, 14, 14>}

// Any other: rows are pixels.
func.func @windows(%x: tensor<2x4x8x8xf32>, %w: tensor<8x4x3x3xf32>) -> tensor<2x8x4x4xf32> {
  %y = graph.conv %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<2x4x8x8xf32>, tensor<8x4x3x3xf32>) -> tensor<2x8x4x4xf32>
  func.return %y : tensor<2x8x4x4xf32>
}
// CHECK:      func.func @windows
// CHECK-NEXT:   graph.reshape %w {shape = array<i64: 8, 36>}
// CHECK-NEXT:   [[X:%.*]] = graph.compute "im2col"
// CHECK:          graph.at %x{{.*}} where {{.*}} else
// CHECK:        } : tensor<2x16x36xf32>
// CHECK-NEXT:   [[W:%.*]] = graph.transpose {{.*}} -> tensor<36x8xf32>
// CHECK-NEXT:   [[P:%.*]] = graph.matmul [[X]], [[W]]
// CHECK-NEXT:   [[T:%.*]] = graph.transpose [[P]] {perm = array<i64: 0, 2, 1>}
// CHECK-NEXT:   %y = graph.reshape [[T]] {shape = array<i64: 2, 8, 4, 4>}

// Groups stay.
func.func @depthwise(%x: tensor<1x4x8x8xf32>, %w: tensor<4x1x3x3xf32>) -> tensor<1x4x6x6xf32> {
  %y = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 4 : i64} : (tensor<1x4x8x8xf32>, tensor<4x1x3x3xf32>) -> tensor<1x4x6x6xf32>
  func.return %y : tensor<1x4x6x6xf32>
}
// CHECK:      func.func @depthwise
// CHECK-NEXT:   %y = graph.conv
