// RUN: treadle-opt %s -p graph-merge-matmuls | filecheck %s

// Both products are read by another product: their slices become its prologues.
func.func @read(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
  %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0"> : tensor<2x2xf32>
  %v = graph.constant #graph.inline<"5.0, 6.0, 7.0, 8.0"> : tensor<2x2xf32>
  %b = graph.constant #graph.inline<"9.0"> : tensor<f32>
  %m = graph.matmul %x, %w : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  %a = graph.binary "add" %m, %b : (tensor<2x2xf32>, tensor<f32>) -> tensor<2x2xf32>
  %n = graph.matmul %x, %v : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  %y = graph.matmul %a, %n : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  func.return %y : tensor<2x2xf32>
}
// CHECK:      func.func @read
// CHECK:        [[W:%.*]] = graph.constant #graph.inline<"1.0, 2.0, 5.0, 6.0, 3.0, 4.0, 7.0, 8.0"> : tensor<2x4xf32>
// CHECK-NEXT:   [[M:%.*]] = graph.matmul %x, [[W]]
// CHECK-NEXT:   [[B:%.*]] = graph.constant #graph.inline<"9.0, 9.0, 0.0, 0.0"> : tensor<4xf32>
// CHECK-NEXT:   [[S:%.*]] = graph.binary "add" [[M]], [[B]]
// CHECK-NEXT:   %a = graph.slice [[S]] {starts = array<i64: 0, 0>, sizes = array<i64: 2, 2>, steps = array<i64: 1, 1>}
// CHECK-NEXT:   %n = graph.slice [[S]] {starts = array<i64: 0, 2>, sizes = array<i64: 2, 2>, steps = array<i64: 1, 1>}
// CHECK-NEXT:   %y = graph.matmul %a, %n

// One product leaves the function: a slice would be a copy.
func.func @returned(%x: tensor<2x2xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>) {
  %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0"> : tensor<2x2xf32>
  %v = graph.constant #graph.inline<"5.0, 6.0, 7.0, 8.0"> : tensor<2x2xf32>
  %m = graph.matmul %x, %w : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  %n = graph.matmul %x, %v : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  func.return %m, %n : tensor<2x2xf32>, tensor<2x2xf32>
}
// CHECK:      func.func @returned
// CHECK-NOT:    graph.slice
