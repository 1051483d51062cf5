// RUN: treadle-opt %s -p graph-pack-weights{width=2} | filecheck %s

// Rows that are masked take packed weights. Weights of which an extent says how many rows count are not constant, and
// stay as they are; those of the other product are packed all the same.
func.func @main(%a: tensor<5x2xf32>, %n: tensor<i64>) -> (tensor<5x3xf32>, tensor<5x3xf32>)
    attributes {extents = ["n"], output_required = [#graph.required<d0 < 0>, #graph.required<>]} {
  %b = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0, 5.0, 6.0"> : tensor<2x3xf32>
  %m = graph.mask %a below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<5x2xf32>, tensor<i64>) -> tensor<5x2xf32>
  %c = graph.matmul %m, %b : (tensor<5x2xf32>, tensor<2x3xf32>) -> tensor<5x3xf32>
  %k = graph.mask %b below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<2x3xf32>, tensor<i64>) -> tensor<2x3xf32>
  %d = graph.matmul %a, %k : (tensor<5x2xf32>, tensor<2x3xf32>) -> tensor<5x3xf32>
  func.return %c, %d : tensor<5x3xf32>, tensor<5x3xf32>
}

// CHECK:      output_required = [#graph.required<d0 < 0>, #graph.required<>]
// CHECK:      [[B:%\S+]] = graph.compute "unpack"
// CHECK:      %m = graph.mask %a below %n {dim = 0 : i64
// CHECK-NEXT: %c = graph.matmul %m, [[B]]
// CHECK-NEXT: %k = graph.mask %b below %n {dim = 0 : i64
// CHECK-NEXT: %d = graph.matmul %a, %k
