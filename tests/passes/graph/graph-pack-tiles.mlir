// RUN: treadle-opt %s -p 'graph-pack-tiles{target="cpu{matrix_unit=amx}"}' | filecheck %s
// RUN: treadle-opt %s -p graph-pack-tiles | filecheck %s --check-prefix=NONE

// A reader that widens takes the sum, also behind a reshape; one that does not takes it rounded. A product of f32, and
// one of two tensors that are not constant, stay.
func.func @main(%a: tensor<4x3xbf16>, %b: tensor<3x2xbf16>, %c: tensor<4x3xf32>)
    -> (tensor<2x4xf32>, tensor<4x2xbf16>, tensor<4x2xbf16>, tensor<4x2xf32>) {
  %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0, 5.0, 6.0"> : tensor<3x2xbf16>
  %v = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0, 5.0, 6.0"> : tensor<3x2xf32>
  %x = graph.matmul %a, %w : (tensor<4x3xbf16>, tensor<3x2xbf16>) -> tensor<4x2xbf16>
  %r = graph.reshape %x {shape = array<i64: 2, 4>} : (tensor<4x2xbf16>) -> tensor<2x4xbf16>
  %wide = graph.cast %r to f32 : (tensor<2x4xbf16>) -> tensor<2x4xf32>
  %y = graph.matmul %a, %b : (tensor<4x3xbf16>, tensor<3x2xbf16>) -> tensor<4x2xbf16>
  %z = graph.matmul %c, %v : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  func.return %wide, %x, %y, %z : tensor<2x4xf32>, tensor<4x2xbf16>, tensor<4x2xbf16>, tensor<4x2xf32>
}

// CHECK:      %w = graph.constant {{.*}} : tensor<1x16x32x2xbf16>
// CHECK:      [[SUM:%x\S*]] = graph.packed_matmul %a, %w {columns = 2 : i64} : (tensor<4x3xbf16>, tensor<1x16x32x2xbf16>) -> tensor<4x2xf32>
// CHECK-NEXT: [[ROUNDED:%x\S*]] = graph.cast [[SUM]] to bf16 : (tensor<4x2xf32>) -> tensor<4x2xbf16>
// CHECK-NEXT: [[WIDE:%r\S*]] = graph.reshape [[SUM]] {shape = array<i64: 2, 4>} : (tensor<4x2xf32>) -> tensor<2x4xf32>
// CHECK-NEXT: %y = graph.matmul %a, %b : (tensor<4x3xbf16>
// CHECK-NEXT: %z = graph.matmul %c, %v : (tensor<4x3xf32>
// CHECK-NEXT: func.return [[WIDE]], [[ROUNDED]], %y, %z

// NONE-NOT: packed_matmul
