// RUN: treadle-opt %s -p graph-block-channels{target="sse2"} | filecheck %s

// The image enters in blocks of four channels; what follows stays in blocks, and leaves for the function's result.
func.func @windows(%x: tensor<2x8x8x8xf32>, %w: tensor<12x8x3x3xf32>, %b: tensor<12x1x1xf32>) -> tensor<2x12x2x2xf32> {
  %c = graph.conv %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<2x8x8x8xf32>, tensor<12x8x3x3xf32>) -> tensor<2x12x4x4xf32>
  %a = graph.binary "add" %c, %b : (tensor<2x12x4x4xf32>, tensor<12x1x1xf32>) -> tensor<2x12x4x4xf32>
  %y = graph.pool "max" %a {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, ceil = 0 : i64, count_pad = 0 : i64} : (tensor<2x12x4x4xf32>) -> tensor<2x12x2x2xf32>
  func.return %y : tensor<2x12x2x2xf32>
}
// CHECK:      func.func @windows
// CHECK-NEXT:   [[A:%.*]] = graph.reshape %x {shape = array<i64: 2, 2, 4, 8, 8>}
// CHECK-NEXT:   [[X:%.*]] = graph.transpose [[A]] {perm = array<i64: 0, 1, 3, 4, 2>}
// CHECK:        [[P:%.*]] = graph.pad "constant" [[X]]
// CHECK-NEXT:   [[I:%.*]] = graph.compute "im2col"
// CHECK:          graph.at [[P]]
// CHECK:        } : tensor<32x72xf32>
// CHECK-NEXT:   [[F:%.*]] = graph.reshape %w {shape = array<i64: 12, 2, 4, 3, 3>}
// CHECK-NEXT:   [[T:%.*]] = graph.transpose [[F]] {perm = array<i64: 1, 3, 4, 2, 0>}
// CHECK-NEXT:   [[W:%.*]] = graph.reshape [[T]] {shape = array<i64: 72, 12>}
// CHECK-NEXT:   [[M:%.*]] = graph.matmul [[I]], [[W]]
// CHECK-NEXT:   [[S:%.*]] = graph.reshape [[M]] {shape = array<i64: 2, 4, 4, 3, 4>}
// CHECK-NEXT:   [[C:%.*]] = graph.transpose [[S]] {perm = array<i64: 0, 3, 1, 2, 4>}
// CHECK:        [[B:%.*]] = graph.transpose {{.*}} -> tensor<1x3x1x1x4xf32>
// CHECK-NEXT:   [[D:%.*]] = graph.binary "add" [[C]], [[B]]
// CHECK-NEXT:   [[Q:%.*]] = graph.compute "pool_max" ([[N:%.*]], [[K:%.*]], [[H:%.*]], [[V:%.*]], [[L:%.*]]) {
// CHECK:          graph.at [[D]]
// CHECK:        } : tensor<2x3x2x2x4xf32>
// CHECK-NEXT:   [[R:%.*]] = graph.transpose [[Q]] {perm = array<i64: 0, 1, 4, 2, 3>}
// CHECK-NEXT:   %y = graph.reshape [[R]] {shape = array<i64: 2, 12, 2, 2>}

// An image of three channels is read as it is. Six channels are computed as eight, by filters of zeros; a depthwise
// convolution of them is its definition, and their mean has six again.
func.func @partly(%x: tensor<1x3x8x8xf32>, %w: tensor<6x3x1x1xf32>, %d: tensor<6x1x3x3xf32>) -> tensor<1x6xf32> {
  %c = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x3x8x8xf32>, tensor<6x3x1x1xf32>) -> tensor<1x6x8x8xf32>
  %e = graph.conv %c, %d {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 6 : i64} : (tensor<1x6x8x8xf32>, tensor<6x1x3x3xf32>) -> tensor<1x6x6x6xf32>
  %y = graph.reduction "add" %e {dims = array<i64: 2, 3>, keep = 0 : i64} : (tensor<1x6x6x6xf32>) -> tensor<1x6xf32>
  func.return %y : tensor<1x6xf32>
}
// CHECK:      func.func @partly
// CHECK-NEXT:   graph.compute "im2col"
// CHECK:          graph.at %x
// CHECK:        graph.pad "constant" {{.*}} {pads = array<i64: 0, 0, 0, 2>} {{.*}} -> tensor<3x8xf32>
// CHECK:        graph.pad "constant" %d
// CHECK:        [[E:%.*]] = graph.compute "conv"
// CHECK:        } : tensor<1x2x6x6x4xf32>
// CHECK-NEXT:   [[S:%.*]] = graph.reduction "add" [[E]] {dims = array<i64: 2, 3>, keep = 0 : i64} {{.*}} -> tensor<1x2x4xf32>
// CHECK-NEXT:   [[R:%.*]] = graph.reshape [[S]] {shape = array<i64: 1, 8>}
// CHECK-NEXT:   %y = graph.slice [[R]]

// Two groups of a block of channels in and two blocks out are a batch of two products: block `group` of the image.
func.func @groups(%x: tensor<1x8x5x5xf32>, %w: tensor<16x4x3x3xf32>) -> tensor<1x16x3x3xf32> {
  %y = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x8x5x5xf32>, tensor<16x4x3x3xf32>) -> tensor<1x16x3x3xf32>
  func.return %y : tensor<1x16x3x3xf32>
}
// CHECK:      func.func @groups
// CHECK:        [[X:%.*]] = graph.transpose {{.*}} -> tensor<1x2x5x5x4xf32>
// CHECK-NEXT:   [[I:%.*]] = graph.compute "im2col" ([[G:%.*]], [[P:%.*]], [[T:%.*]]) {
// CHECK:          graph.at [[X]]
// CHECK:        } : tensor<2x9x36xf32>
// CHECK-NEXT:   [[G:%.*]] = graph.reshape %w {shape = array<i64: 2, 8, 4, 3, 3>}
// CHECK-NEXT:   [[A:%.*]] = graph.reshape [[G]] {shape = array<i64: 2, 8, 1, 4, 3, 3>}
// CHECK-NEXT:   [[F:%.*]] = graph.transpose [[A]] {perm = array<i64: 0, 2, 4, 5, 3, 1>}
// CHECK-NEXT:   [[W:%.*]] = graph.reshape [[F]] {shape = array<i64: 2, 36, 8>}
// CHECK-NEXT:   [[M:%.*]] = graph.matmul [[I]], [[W]] : (tensor<2x9x36xf32>, tensor<2x36x8xf32>) -> tensor<2x9x8xf32>
// CHECK-NEXT:   [[B:%.*]] = graph.reshape [[M]] {shape = array<i64: 2, 1, 3, 3, 2, 4>}
// CHECK-NEXT:   [[S:%.*]] = graph.transpose [[B]] {perm = array<i64: 1, 0, 4, 2, 3, 5>}
// CHECK-NEXT:   [[R:%.*]] = graph.reshape [[S]] {shape = array<i64: 1, 4, 3, 3, 4>}

// Without a convolution nothing is turned, nor where channels would fill less than three quarters of the blocks.
func.func @pool(%x: tensor<1x4x8x8xf32>, %w: tensor<5x4x1x1xf32>) -> (tensor<1x4x4x4xf32>, tensor<1x5x8x8xf32>) {
  %y = graph.pool "max" %x {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, ceil = 0 : i64, count_pad = 0 : i64} : (tensor<1x4x8x8xf32>) -> tensor<1x4x4x4xf32>
  %z = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x4x8x8xf32>, tensor<5x4x1x1xf32>) -> tensor<1x5x8x8xf32>
  func.return %y, %z : tensor<1x4x4x4xf32>, tensor<1x5x8x8xf32>
}
// CHECK:      func.func @pool
// CHECK-NEXT:   graph.pool "max" %x
// CHECK-NEXT:   graph.conv %x

// Nor is anything of unknown extents.
func.func @symbolic(%x: tensor<?x4x8x8xf32>, %w: tensor<4x4x1x1xf32>) -> tensor<?x4x8x8xf32> {
  %y = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<?x4x8x8xf32>, tensor<4x4x1x1xf32>) -> tensor<?x4x8x8xf32>
  func.return %y : tensor<?x4x8x8xf32>
}
// CHECK:      func.func @symbolic
// CHECK-NEXT:   graph.conv %x
