// RUN: treadle-opt %s -p 'graph-fold-constants,graph-block-channels{target="sse2{matrix_unit=amx}"}' | filecheck %s
// RUN: treadle-opt %s -p 'graph-fold-constants,graph-block-channels{target="sse2"}' | filecheck %s --check-prefix NONE
// RUN: treadle-opt %s -p 'graph-fold-constants,graph-block-channels{target="cpu{matrix_unit=vnni}"}' | filecheck %s --check-prefix NONE

// Blocks have 32 channels: 48 fill one and a half, and the bias reads the sums.
func.func @panels(%x: tensor<2x48x9x9xbf16>, %b: tensor<40x1x1xf32>) -> tensor<2x40x5x5xf32> {
  %v = graph.constant #graph.inline<"1.0"> : tensor<bf16>
  %w = graph.broadcast %v {shape = array<i64: 40, 48, 3, 3>} : (tensor<bf16>) -> tensor<40x48x3x3xbf16>
  %w1 = graph.broadcast %v {shape = array<i64: 40, 40, 1, 1>} : (tensor<bf16>) -> tensor<40x40x1x1xbf16>
  %c = graph.conv %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<2x48x9x9xbf16>, tensor<40x48x3x3xbf16>) -> tensor<2x40x5x5xbf16>
  %d = graph.conv %c, %w1 {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<2x40x5x5xbf16>, tensor<40x40x1x1xbf16>) -> tensor<2x40x5x5xbf16>
  %f = graph.cast %d to f32 : (tensor<2x40x5x5xbf16>) -> tensor<2x40x5x5xf32>
  %y = graph.binary "add" %f, %b : (tensor<2x40x5x5xf32>, tensor<40x1x1xf32>) -> tensor<2x40x5x5xf32>
  func.return %y : tensor<2x40x5x5xf32>
}
// CHECK:      func.func @panels
// CHECK:        [[X:%.*]] = graph.transpose {{.*}} -> tensor<2x2x9x9x32xbf16>
// CHECK:        [[S:%.*]] = graph.packed_conv [[X]], {{%.*}} {channels = 48 : i64, columns = 40 : i64, kernel = array<i64: 3, 3>, strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} : (tensor<2x2x9x9x32xbf16>, tensor<2x288x32x2xbf16>) -> tensor<2x2x5x5x32xf32>
// CHECK-NEXT:   [[C:%.*]] = graph.cast [[S]] to bf16
// CHECK:        [[D:%.*]] = graph.packed_conv [[C]], {{%.*}} {channels = 40 : i64, columns = 40 : i64, kernel = array<i64: 1, 1>{{.*}} -> tensor<2x2x5x5x32xf32>
// CHECK:        graph.binary "add" [[D]]
// NONE-NOT: packed_conv

// Of three channels, the seven pixels under a row of a window are a block of 28: windows have one column then.
func.func @few(%x: tensor<1x3x32x40xbf16>) -> tensor<1x32x16x20xbf16> {
  %v = graph.constant #graph.inline<"1.0"> : tensor<bf16>
  %w = graph.broadcast %v {shape = array<i64: 32, 3, 7, 7>} : (tensor<bf16>) -> tensor<32x3x7x7xbf16>
  %c = graph.conv %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 3, 3, 3, 3>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x3x32x40xbf16>, tensor<32x3x7x7xbf16>) -> tensor<1x32x16x20xbf16>
  func.return %c : tensor<1x32x16x20xbf16>
}
// CHECK:      func.func @few
// CHECK:        [[T:%.*]] = graph.transpose %x {perm = array<i64: 0, 2, 3, 1>}
// CHECK:        [[P:%.*]] = graph.pad "constant" [[T]], {{%.*}} {pads = array<i64: 0, 0, 3, 0, 0, 0, 3, 1>} {{.*}} -> tensor<1x32x46x4xbf16>
// CHECK:        [[I:%.*]] = graph.compute "im2col"
// CHECK:          graph.at [[P]]
// CHECK:        } : tensor<1x1x32x20x32xbf16>
// CHECK:        graph.packed_conv [[I]], {{%.*}} {channels = 28 : i64, columns = 32 : i64, kernel = array<i64: 7, 1>, strides = array<i64: 2, 1>, pads = array<i64: 3, 0, 3, 0>, dilations = array<i64: 1, 1>} : (tensor<1x1x32x20x32xbf16>, tensor<1x112x32x2xbf16>) -> tensor<1x1x16x20x32xf32>
