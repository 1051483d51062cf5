// RUN: treadle-opt %s -p graph-recognize | filecheck %s

func.func @attention(%q: tensor<2x5x8xf32>, %kt: tensor<2x8x6xf32>, %v: tensor<2x6x3xf32>) -> tensor<2x5x3xf32> {
  %half = graph.constant #graph.inline<"0.5"> : tensor<f32>
  %s = graph.matmul %q, %kt : (tensor<2x5x8xf32>, tensor<2x8x6xf32>) -> tensor<2x5x6xf32>
  %t = graph.binary "mul" %s, %half : (tensor<2x5x6xf32>, tensor<f32>) -> tensor<2x5x6xf32>
  %p = graph.softmax %t {dim = 2 : i64} : (tensor<2x5x6xf32>) -> tensor<2x5x6xf32>
  %y = graph.matmul %p, %v : (tensor<2x5x6xf32>, tensor<2x6x3xf32>) -> tensor<2x5x3xf32>
  func.return %y : tensor<2x5x3xf32>
}
// CHECK:      func.func @attention
// CHECK-NEXT:   [[K:%.*]] = graph.transpose %kt {perm = array<i64: 0, 2, 1>} : (tensor<2x8x6xf32>) -> tensor<2x6x8xf32>
// CHECK-NEXT:   %y = graph.attention %q, [[K]], %v {scale = 5.000000e-01 : f64, causal = 0 : i64, guard = 0 : i64}
// CHECK-NEXT:   func.return %y

// The probabilities are a result, too.
func.func @probabilities(%q: tensor<5x8xf32>, %kt: tensor<8x6xf32>, %v: tensor<6x3xf32>) -> (tensor<5x3xf32>, tensor<5x6xf32>) {
  %s = graph.matmul %q, %kt : (tensor<5x8xf32>, tensor<8x6xf32>) -> tensor<5x6xf32>
  %p = graph.softmax %s {dim = 1 : i64} : (tensor<5x6xf32>) -> tensor<5x6xf32>
  %y = graph.matmul %p, %v : (tensor<5x6xf32>, tensor<6x3xf32>) -> tensor<5x3xf32>
  func.return %y, %p : tensor<5x3xf32>, tensor<5x6xf32>
}
// CHECK:      func.func @probabilities
// CHECK-NEXT:   graph.matmul
// CHECK-NEXT:   graph.softmax
// CHECK-NEXT:   graph.matmul

func.func @layer_norm(%x: tensor<2x8xf32>, %scale: tensor<8xf32>) -> tensor<2x8xf32> {
  %epsilon = graph.constant #graph.inline<"1.0e-05"> : tensor<f32>
  %m = graph.reduction "mean" %x {dims = array<i64: 1>, keep = 1 : i64} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %d = graph.binary "sub" %x, %m : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  %q = graph.binary "mul" %d, %d : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  %v = graph.reduction "mean" %q {dims = array<i64: 1>, keep = 1 : i64} : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %e = graph.binary "add" %v, %epsilon : (tensor<2x1xf32>, tensor<f32>) -> tensor<2x1xf32>
  %s = graph.unary "sqrt" %e : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %n = graph.binary "div" %d, %s : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
  %y = graph.binary "mul" %n, %scale : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  func.return %y : tensor<2x8xf32>
}
// CHECK:      func.func @layer_norm
// CHECK-NEXT:   [[B:%.*]] = graph.constant #graph.inline<"-0.0, -0.0, -0.0, -0.0, -0.0, -0.0, -0.0, -0.0"> : tensor<8xf32>
// CHECK-NEXT:   %y = graph.layer_norm %x, %scale, [[B]] {dim = 1 : i64

// Keys from %n on do not exist: their scores are -inf, their probabilities and values 0.
func.func @length(%q: tensor<5x8xf32>, %k: tensor<6x8xf32>, %v: tensor<6x3xf32>, %n: tensor<i64>) -> tensor<5x3xf32> {
  %kt = graph.transpose %k {perm = array<i64: 1, 0>} : (tensor<6x8xf32>) -> tensor<8x6xf32>
  %s = graph.matmul %q, %kt : (tensor<5x8xf32>, tensor<8x6xf32>) -> tensor<5x6xf32>
  %t = graph.mask %s below %n {dim = 1 : i64, fill = 0xff800000 : f32} : (tensor<5x6xf32>, tensor<i64>) -> tensor<5x6xf32>
  %p = graph.softmax %t {dim = 1 : i64} : (tensor<5x6xf32>) -> tensor<5x6xf32>
  %a = graph.mask %p below %n {dim = 1 : i64, fill = 0.0 : f32} : (tensor<5x6xf32>, tensor<i64>) -> tensor<5x6xf32>
  %b = graph.mask %v below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<6x3xf32>, tensor<i64>) -> tensor<6x3xf32>
  %y = graph.matmul %a, %b : (tensor<5x6xf32>, tensor<6x3xf32>) -> tensor<5x3xf32>
  func.return %y : tensor<5x3xf32>
}
// CHECK:      func.func @length
// CHECK-NEXT:   %y = graph.attention %q, %k, %v length %n {scale = 1.000000e+00 : f64, causal = 0 : i64, guard = 0 : i64}
// CHECK-NEXT:   func.return %y
