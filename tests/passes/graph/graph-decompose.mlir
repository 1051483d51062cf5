// RUN: treadle-opt %s -p graph-decompose | filecheck %s --check-prefix=KEPT
// RUN: treadle-opt %s -p graph-decompose{rows=true} | filecheck %s

// One template schedules the whole row; `rows` takes it apart all the same.
// KEPT:      func.func @softmax
// KEPT-NEXT:   %y = graph.softmax %x
// KEPT:      func.func @mean
// KEPT-NEXT:   graph.reduction "add" %x

func.func @softmax(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = graph.softmax %x {dim = 1 : i64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
// CHECK:      func.func @softmax
// CHECK-NEXT:   [[M:%.*]] = graph.reduction "max" %x {dims = array<i64: 1>, keep = 1 : i64} : (tensor<4x8xf32>) -> tensor<4x1xf32>
// CHECK-NEXT:   [[D:%.*]] = graph.binary "sub" %x, [[M]]
// CHECK-NEXT:   [[E:%.*]] = graph.unary "exp" [[D]]
// CHECK-NEXT:   [[S:%.*]] = graph.reduction "add" [[E]]
// CHECK-NEXT:   %y = graph.binary "div" [[E]], [[S]]

func.func @mean(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %y = graph.reduction "mean" %x {dims = array<i64: 1>, keep = 0 : i64} : (tensor<4x8xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
// CHECK:      func.func @mean
// CHECK-NEXT:   [[S:%.*]] = graph.reduction "add" %x
// CHECK-NEXT:   [[N:%.*]] = graph.constant #graph.inline<"8.0"> : tensor<f32>
// CHECK-NEXT:   %y = graph.binary "div" [[S]], [[N]]

// A sum of half floats may be infinite where their mean is not.
func.func @mean_of_halves(%x: tensor<4x8xf16>) -> tensor<4xf16> {
  %y = graph.reduction "mean" %x {dims = array<i64: 1>, keep = 0 : i64} : (tensor<4x8xf16>) -> tensor<4xf16>
  func.return %y : tensor<4xf16>
}
// CHECK:      func.func @mean_of_halves
// CHECK-NEXT:   [[W:%.*]] = graph.cast %x to f32
// CHECK-NEXT:   [[S:%.*]] = graph.reduction "add" [[W]]
// CHECK-NEXT:   [[N:%.*]] = graph.constant #graph.inline<"8.0"> : tensor<f32>
// CHECK-NEXT:   [[Q:%.*]] = graph.binary "div" [[S]], [[N]]
// CHECK-NEXT:   %y = graph.cast [[Q]] to f16

func.func @mean_of_integers(%x: tensor<4x8xi32>) -> tensor<4xi32> {
  %y = graph.reduction "mean" %x {dims = array<i64: 1>, keep = 0 : i64} : (tensor<4x8xi32>) -> tensor<4xi32>
  func.return %y : tensor<4xi32>
}
// CHECK:      func.func @mean_of_integers
// CHECK-NEXT:   [[S:%.*]] = graph.reduction "add" %x
// CHECK-NEXT:   [[N:%.*]] = graph.constant #graph.inline<"8"> : tensor<i32>
// CHECK-NEXT:   %y = graph.binary "div" [[S]], [[N]]

// So may be one of exponentials, or of squares.
func.func @softmax_of_halves(%x: tensor<4x8xf16>) -> tensor<4x8xf16> {
  %y = graph.softmax %x {dim = 1 : i64} : (tensor<4x8xf16>) -> tensor<4x8xf16>
  func.return %y : tensor<4x8xf16>
}
// CHECK:      func.func @softmax_of_halves
// CHECK-NEXT:   [[W:%.*]] = graph.cast %x to f32
// CHECK-NEXT:   [[M:%.*]] = graph.reduction "max" [[W]]
// CHECK-NEXT:   [[D:%.*]] = graph.binary "sub" [[W]], [[M]]
// CHECK-NEXT:   [[E:%.*]] = graph.unary "exp" [[D]]
// CHECK-NEXT:   [[S:%.*]] = graph.reduction "add" [[E]] {{.*}} -> tensor<4x1xf32>
// CHECK-NEXT:   [[Q:%.*]] = graph.binary "div" [[E]], [[S]]
// CHECK-NEXT:   %y = graph.cast [[Q]] to f16

func.func @norm_of_halves(%x: tensor<4x8xf16>, %s: tensor<8xf16>) -> tensor<4x8xf16> {
  %y = graph.rms_norm %x, %s {dim = 1 : i64, epsilon = 1.0e-05 : f64} : (tensor<4x8xf16>, tensor<8xf16>) -> tensor<4x8xf16>
  func.return %y : tensor<4x8xf16>
}
// CHECK:      func.func @norm_of_halves
// CHECK-NEXT:   [[W:%.*]] = graph.cast %x to f32
// CHECK-NEXT:   [[C:%.*]] = graph.cast %s to f32
// CHECK:        graph.reduction "add" {{.*}} -> tensor<4x1xf32>
// CHECK:        [[Y:%.*]] = graph.binary "mul" {{.*}}, [[C]]
// CHECK-NEXT:   %y = graph.cast [[Y]] to f16

// The number of elements under a window is a constant, over the dimensions that it depends on.
func.func @pool(%x: tensor<1x2x4x4xf32>) -> tensor<1x2x4x2xf32> {
  %y = graph.pool "avg" %x {kernel = array<i64: 3, 3>, strides = array<i64: 1, 1>, pads = array<i64: 1, 0, 1, 0>, dilations = array<i64: 1, 1>, ceil = 0 : i64, count_pad = 0 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x2xf32>
  func.return %y : tensor<1x2x4x2xf32>
}
// CHECK:      func.func @pool
// CHECK-NEXT:   [[N:%.*]] = graph.constant #graph.inline<"6.0, 9.0, 9.0, 6.0"> : tensor<4xf32>
// CHECK-NEXT:   %y = graph.compute "pool" ({{%.*}}, {{%.*}}, [[I:%.*]], {{%.*}}) {
// CHECK-NEXT:     graph.reduce add
// CHECK:          graph.at [[N]][[[I]]] : tensor<4xf32>

// A transposed convolution of stride 2: a convolution of 2 taps that gives both pixels of a stride as channels, whose
// pixels are put side by side; the first one is beyond the padding.
// CHECK-LABEL: func.func @transposed_convolution
// CHECK-NEXT:   [[W:%.*]] = graph.constant #graph.inline<"3.0, 1.0, 4.0, 2.0, 7.0, 5.0, 8.0, 6.0"> : tensor<4x1x2xf32>
// CHECK-NEXT:   [[C:%.*]] = graph.conv %x, [[W]] {strides = array<i64: 1>, pads = array<i64: 1, 1>, {{.*}} -> tensor<1x4x4xf32>
// CHECK-NEXT:   [[A:%.*]] = graph.reshape [[C]] {shape = array<i64: 1, 2, 2, 4>}
// CHECK-NEXT:   [[S:%.*]] = graph.transpose [[A]] {perm = array<i64: 0, 1, 3, 2>}
// CHECK-NEXT:   [[I:%.*]] = graph.reshape [[S]] {shape = array<i64: 1, 2, 8>}
// CHECK-NEXT:   %y = graph.slice [[I]] {starts = array<i64: 0, 0, 1>, sizes = array<i64: 1, 2, 6>, steps = array<i64: 1, 1, 1>}
func.func @transposed_convolution(%x: tensor<1x1x3xf32>) -> tensor<1x2x6xf32> {
  %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0"> : tensor<1x2x4xf32>
  %y = graph.conv_transpose %x, %w {strides = array<i64: 2>, pads = array<i64: 1, 1>, dilations = array<i64: 1>,
      groups = 1 : i64, output_padding = array<i64: 0>} : (tensor<1x1x3xf32>, tensor<1x2x4xf32>) -> tensor<1x2x6xf32>
  func.return %y : tensor<1x2x6xf32>
}
