// RUN: treadle-opt %s -p graph-pack-weights{width=2} | filecheck %s

func.func @main(%a: tensor<5x2xf32>) -> tensor<5x3xf32> {
  %b = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0, 5.0, 6.0"> : tensor<2x3xf32>
  %c = graph.matmul %a, %b : (tensor<5x2xf32>, tensor<2x3xf32>) -> tensor<5x3xf32>
  func.return %c : tensor<5x3xf32>
}

// CHECK:      [[P:%.*]] = graph.constant #graph.inline<"1.0, 2.0, 4.0, 5.0, 3.0, 0.0, 6.0, 0.0"> : tensor<2x2x2xf32>
// CHECK-NEXT: [[B:%.*]] = graph.compute "unpack" ([[K:%.*]], [[N:%.*]]) {
// CHECK:        [[Q:%.*]] = arith.divui [[N]]
// CHECK:        [[R:%.*]] = arith.remui [[N]]
// CHECK-NEXT:   graph.at [[P]][[[Q]], [[K]], [[R]]]
// CHECK:      } : tensor<2x3xf32>
// CHECK-NEXT: graph.matmul %a, [[B]]
