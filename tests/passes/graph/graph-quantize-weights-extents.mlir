// RUN: treadle-opt %s -p graph-quantize-weights{weights=int8} | filecheck %s

// Rows that are required up to an extent take quantised weights. Weights of which an extent says how many rows count
// are not constant, and stay.
func.func @main(%a: tensor<5x32xf32>, %n: tensor<i64>) -> (tensor<5x32xf32>, tensor<5x32xf32>)
    attributes {extents = ["n"], output_required = [#graph.required<d0 < 0>, #graph.required<>]} {
  %one = graph.constant #graph.inline<"1.0"> : tensor<f32>
  %b = graph.broadcast %one {shape = array<i64: 32, 32>} : (tensor<f32>) -> tensor<32x32xf32>
  %c = graph.matmul %a, %b : (tensor<5x32xf32>, tensor<32x32xf32>) -> tensor<5x32xf32>
  %k = graph.mask %b below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<32x32xf32>, tensor<i64>) -> tensor<32x32xf32>
  %d = graph.matmul %a, %k : (tensor<5x32xf32>, tensor<32x32xf32>) -> tensor<5x32xf32>
  func.return %c, %d : tensor<5x32xf32>, tensor<5x32xf32>
}

// CHECK:      output_required = [#graph.required<d0 < 0>, #graph.required<>]
// CHECK:      [[B:%\S+]] = graph.compute "dequantize"
// CHECK:      %c = graph.matmul %a, [[B]]
// CHECK-NEXT: %k = graph.mask %{{.*}} below %n
// CHECK-NEXT: %d = graph.matmul %a, %k
