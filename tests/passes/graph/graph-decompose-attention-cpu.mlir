// RUN: treadle-opt %s -p graph-decompose-attention{target=avx2} | filecheck %s
// RUN: treadle-opt %s -p 'graph-decompose-attention{target="avx2{l2_bytes=64}"}' | filecheck %s --check-prefix SMALL

func.func @main(%q: tensor<4x8x8xf32>, %k: tensor<4x64x8xf32>, %v: tensor<4x64x8xf32>, %one: tensor<4x7x8xf32>, %h: tensor<4x64x8xf16>) -> (tensor<4x8x8xf32>, tensor<4x7x8xf32>, tensor<4x64x8xf16>) {
  %x = graph.attention %q, %k, %v {scale = 5.000000e-01 : f64, causal = 1 : i64, guard = 0 : i64} : (tensor<4x8x8xf32>, tensor<4x64x8xf32>, tensor<4x64x8xf32>) -> tensor<4x8x8xf32>
  %y = graph.attention %one, %k, %v {scale = 5.000000e-01 : f64, causal = 1 : i64, guard = 0 : i64} : (tensor<4x7x8xf32>, tensor<4x64x8xf32>, tensor<4x64x8xf32>) -> tensor<4x7x8xf32>
  %z = graph.attention %h, %h, %h {scale = 5.000000e-01 : f64, causal = 1 : i64, guard = 0 : i64} : (tensor<4x64x8xf16>, tensor<4x64x8xf16>, tensor<4x64x8xf16>) -> tensor<4x64x8xf16>
  func.return %x, %y, %z : tensor<4x8x8xf32>, tensor<4x7x8xf32>, tensor<4x64x8xf16>
}

// A vector of queries is one kernel, and so is less than a vector; 16-bit floats are not.
// CHECK:      %x = graph.attention %q, %k, %v
// CHECK:      %y = graph.attention %one, %k, %v
// CHECK-NOT:  graph.attention
// CHECK:      %z = graph.matmul

// Scores of no block stay in half of such a cache.
// SMALL-NOT: graph.attention
