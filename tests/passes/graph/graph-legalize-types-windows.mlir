// RUN: treadle-opt %s -p 'graph-legalize-types{target="cpu{matrix_unit=amx}"}' | filecheck %s
// RUN: treadle-opt %s -p 'graph-legalize-types{target="cpu{matrix_unit=vnni}"}' | filecheck %s --check-prefix=NONE
// RUN: treadle-opt %s -p graph-legalize-types | filecheck %s --check-prefix=NONE

// A depthwise convolution between casts, and maximum pooling of its rounded result; a dense one stays.
func.func @main(%x: tensor<1x4x8x8xf32>, %w: tensor<4x1x3x3xbf16>, %d: tensor<4x4x1x1xbf16>)
    -> (tensor<1x4x6x6xf32>, tensor<1x4x2x2xbf16>) {
  %n = graph.cast %x to bf16 : (tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xbf16>
  %c = graph.conv %n, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 4 : i64} : (tensor<1x4x8x8xbf16>, tensor<4x1x3x3xbf16>) -> tensor<1x4x6x6xbf16>
  %y = graph.cast %c to f32 : (tensor<1x4x6x6xbf16>) -> tensor<1x4x6x6xf32>
  %e = graph.conv %c, %d {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x4x6x6xbf16>, tensor<4x4x1x1xbf16>) -> tensor<1x4x6x6xbf16>
  %p = graph.pool "max" %e {kernel = array<i64: 3, 3>, strides = array<i64: 3, 3>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, ceil = 0 : i64, count_pad = 0 : i64} : (tensor<1x4x6x6xbf16>) -> tensor<1x4x2x2xbf16>
  func.return %y, %p : tensor<1x4x6x6xf32>, tensor<1x4x2x2xbf16>
}

// CHECK-NOT:  graph.cast %x
// CHECK:      [[W:%\S+]] = graph.cast %w to f32
// CHECK-NEXT: [[C:%\S+]] = graph.conv %x, [[W]] {{.*}} -> tensor<1x4x6x6xf32>
// CHECK-NEXT: [[N:%\S+]] = graph.cast [[C]] to bf16
// CHECK-NEXT: [[E:%\S+]] = graph.conv [[N]], %d {{.*}} -> tensor<1x4x6x6xbf16>
// CHECK-NEXT: [[F:%\S+]] = graph.cast [[E]] to f32
// CHECK-NEXT: [[P:%\S+]] = graph.pool "max" [[F]] {{.*}} -> tensor<1x4x2x2xf32>
// CHECK-NEXT: [[R:%\S+]] = graph.cast [[P]] to bf16
// CHECK-NEXT: func.return [[C]], [[R]]

// NONE: graph.conv {{.*}} -> tensor<1x4x6x6xbf16>
// NONE: graph.pool "max" {{.*}} -> tensor<1x4x2x2xbf16>
