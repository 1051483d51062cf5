// RUN: treadle-opt %s -p 'graph-decompose-attention{target="cpu{l2_bytes=64}"}' | filecheck %s
// RUN: treadle-opt %s -p graph-decompose-attention{target="sm_80"} | filecheck %s --check-prefix WHOLE

func.func @main(%q: tensor<1x4x2x8xf32>, %k: tensor<1x2x3x8xf32>, %v: tensor<1x2x3x5xf32>) -> tensor<1x4x2x5xf32> {
  %y = graph.attention %q, %k, %v {scale = 5.000000e-01 : f64, causal = 1 : i64, guard = 0 : i64} : (tensor<1x4x2x8xf32>, tensor<1x2x3x8xf32>, tensor<1x2x3x5xf32>) -> tensor<1x4x2x5xf32>
  func.return %y : tensor<1x4x2x5xf32>
}

// Two groups of keys and values serve four heads.
// CHECK:      [[A:%.*]] = graph.reshape %k {shape = array<i64: 1, 2, 1, 3, 8>}
// CHECK-NEXT: [[B:%.*]] = graph.broadcast [[A]] {shape = array<i64: 1, 2, 2, 3, 8>}
// CHECK-NEXT: [[K:%.*]] = graph.reshape [[B]] {shape = array<i64: 1, 4, 3, 8>}
// CHECK:      [[V:%.*]] = graph.reshape {{.*}} {shape = array<i64: 1, 4, 3, 5>}
// CHECK-NEXT: [[T:%.*]] = graph.transpose [[K]] {perm = array<i64: 0, 1, 3, 2>}
// CHECK-NEXT: [[S:%.*]] = graph.matmul %q, [[T]]
// CHECK-NEXT: [[H:%.*]] = graph.constant #graph.inline<"0.5"> : tensor<f32>
// CHECK-NEXT: [[P:%.*]] = graph.binary "mul" [[S]], [[H]]
// CHECK-NEXT: [[C:%.*]] = graph.constant #graph.inline<"True, True, False, True, True, True"> : tensor<2x3xi1>
// CHECK-NEXT: [[L:%.*]] = graph.constant #graph.inline<"-inf"> : tensor<f32>
// CHECK-NEXT: [[W:%.*]] = graph.where [[C]], [[P]], [[L]]
// CHECK-NEXT: [[X:%.*]] = graph.softmax [[W]] {dim = 3 : i64}
// CHECK-NEXT: %y = graph.matmul [[X]], [[V]]

// WHOLE: %y = graph.attention %q, %k, %v

// A length of keys becomes masks of scores, probabilities and values.
func.func @length(%q: tensor<2x8xf32>, %k: tensor<3x8xf32>, %v: tensor<3x5xf32>, %n: tensor<i64>) -> tensor<2x5xf32> {
  %z = graph.attention %q, %k, %v length %n {scale = 1.0 : f64, causal = 0 : i64, guard = 0 : i64} : (tensor<2x8xf32>, tensor<3x8xf32>, tensor<3x5xf32>) -> tensor<2x5xf32>
  func.return %z : tensor<2x5xf32>
}

// CHECK-LABEL: func.func @length
// CHECK-NEXT:  [[V:%.*]] = graph.mask %v below %n {dim = 0 : i64, fill = 0.000000e+00 : f32}
// CHECK-NEXT:  [[T:%.*]] = graph.transpose %k
// CHECK-NEXT:  [[S:%.*]] = graph.matmul %q, [[T]]
// CHECK-NEXT:  [[M:%.*]] = graph.mask [[S]] below %n {dim = 1 : i64, fill = 0xff800000 : f32}
// CHECK-NEXT:  [[P:%.*]] = graph.softmax [[M]] {dim = 1 : i64}
// CHECK-NEXT:  [[A:%.*]] = graph.mask [[P]] below %n {dim = 1 : i64, fill = 0.000000e+00 : f32}
// CHECK-NEXT:  %z = graph.matmul [[A]], [[V]]
// WHOLE-LABEL: func.func @length
// WHOLE:       graph.attention %q, %k, %v length %n
