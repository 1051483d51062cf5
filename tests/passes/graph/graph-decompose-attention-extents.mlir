// RUN: treadle-opt %s -p 'graph-decompose-attention{target="cpu{l2_bytes=64}"}' | filecheck %s

// A length becomes masks of the values, of the scores and of the weights, whose rows of no key would be NaN.
func.func @main(%q: tensor<2x8xf32>, %k: tensor<3x8xf32>, %v: tensor<3x5xf32>, %n: tensor<i64>) -> tensor<2x5xf32>
    attributes {extents = ["n"], output_required = [#graph.required<>]} {
  %z = graph.attention %q, %k, %v length %n {scale = 1.0 : f64, causal = 0 : i64, guard = 0 : i64} : (tensor<2x8xf32>, tensor<3x8xf32>, tensor<3x5xf32>) -> tensor<2x5xf32>
  func.return %z : tensor<2x5xf32>
}

// CHECK:      attributes {extents = ["n"], output_required = [#graph.required<>]}
// CHECK:      [[V:%\S+]] = graph.mask %v below %n {dim = 0 : i64, fill = 0.000000e+00 : f32}
// CHECK:      [[S:%\S+]] = graph.matmul %q
// CHECK-NEXT: [[M:%\S+]] = graph.mask [[S]] below %n {dim = 1 : i64, fill = 0xff800000 : f32}
// CHECK-NEXT: [[P:%\S+]] = graph.softmax [[M]]
// CHECK-NEXT: [[Q:%\S+]] = graph.mask [[P]] below %n {dim = 1 : i64, fill = 0.000000e+00 : f32}
// CHECK-NEXT: graph.matmul [[Q]], [[V]]
