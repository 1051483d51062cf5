// RUN: treadle-opt %s -p graph-mixed-precision{precision=f16} | filecheck %s

// Masks around a product move data, and what they fill in has the narrower type: of -inf, that type's.
func.func @main(%x: tensor<4x32x48xf32>, %n: tensor<i64>) -> tensor<4x32x32xf32> attributes {extents = ["n"]} {
  %a = graph.mask %x below %n {dim = 1 : i64, fill = 0.0 : f32}
      : (tensor<4x32x48xf32>, tensor<i64>) -> tensor<4x32x48xf32>
  %b = graph.transpose %a {perm = array<i64: 0, 2, 1>} : (tensor<4x32x48xf32>) -> tensor<4x48x32xf32>
  %p = graph.matmul %x, %b : (tensor<4x32x48xf32>, tensor<4x48x32xf32>) -> tensor<4x32x32xf32>
  %m = graph.mask %p below %n {dim = 2 : i64, fill = 0xFF800000 : f32}
      : (tensor<4x32x32xf32>, tensor<i64>) -> tensor<4x32x32xf32>
  %y = graph.softmax %m {dim = 2 : i64} : (tensor<4x32x32xf32>) -> tensor<4x32x32xf32>
  func.return %y : tensor<4x32x32xf32>
}

// CHECK:      graph.cast %x to f16
// CHECK-NEXT: %a = graph.mask %{{.*}} below %n {dim = 1 : i64, fill = 0.000000e+00 : f16}
// CHECK:      %p = graph.matmul {{.*}} -> tensor<4x32x32xf16>
// CHECK-NEXT: %m = graph.mask %p below %n {dim = 2 : i64, fill = 0xfc00 : f16}
// CHECK-NEXT: graph.cast %m to f32
// CHECK-NEXT: graph.softmax
