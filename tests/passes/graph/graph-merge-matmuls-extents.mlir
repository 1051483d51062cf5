// RUN: treadle-opt %s -p graph-merge-matmuls | filecheck %s

// Two products of one masked operand, as keys and queries of a sequence are, become one; the mask stays before it, and
// that of a result behind its part.
func.func @main(%x: tensor<2x2xf32>, %n: tensor<i64>) -> tensor<2x2xf32> attributes {extents = ["n"]} {
  %v = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0"> : tensor<2x2xf32>
  %w = graph.constant #graph.inline<"5.0, 6.0, 7.0, 8.0"> : tensor<2x2xf32>
  %a = graph.mask %x below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<2x2xf32>, tensor<i64>) -> tensor<2x2xf32>
  %p = graph.matmul %a, %v : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  %q = graph.matmul %a, %w : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  %m = graph.mask %q below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<2x2xf32>, tensor<i64>) -> tensor<2x2xf32>
  %y = graph.matmul %p, %m : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  func.return %y : tensor<2x2xf32>
}

// CHECK:      %a = graph.mask %x below %n
// CHECK:      [[BOTH:%.*]] = graph.matmul %a, %{{.*}} -> tensor<2x4xf32>
// CHECK:      %q = graph.slice [[BOTH]]
// CHECK:      %m = graph.mask %q below %n
// CHECK:      graph.matmul %{{.*}}, %m
