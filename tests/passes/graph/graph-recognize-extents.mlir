// RUN: treadle-opt %s -p graph-recognize | filecheck %s

// Masks of scores, weights and values below one extent are the length of an attention. Below two extents they are not.
func.func @main(%q: tensor<5x8xf32>, %kt: tensor<8x6xf32>, %v: tensor<6x3xf32>, %n: tensor<i64>, %m: tensor<i64>) -> (tensor<5x3xf32>, tensor<5x3xf32>)
    attributes {extents = ["n", "m"], output_required = [#graph.required<d0 < 0>, #graph.required<>]} {
  %s = graph.matmul %q, %kt : (tensor<5x8xf32>, tensor<8x6xf32>) -> tensor<5x6xf32>
  %h = graph.mask %s below %n {dim = 1 : i64, fill = 0xFF800000 : f32} : (tensor<5x6xf32>, tensor<i64>) -> tensor<5x6xf32>
  %p = graph.softmax %h {dim = 1 : i64} : (tensor<5x6xf32>) -> tensor<5x6xf32>
  %g = graph.mask %p below %n {dim = 1 : i64, fill = 0.0 : f32} : (tensor<5x6xf32>, tensor<i64>) -> tensor<5x6xf32>
  %w = graph.mask %v below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<6x3xf32>, tensor<i64>) -> tensor<6x3xf32>
  %y = graph.matmul %g, %w : (tensor<5x6xf32>, tensor<6x3xf32>) -> tensor<5x3xf32>
  %s2 = graph.matmul %q, %kt : (tensor<5x8xf32>, tensor<8x6xf32>) -> tensor<5x6xf32>
  %h2 = graph.mask %s2 below %n {dim = 1 : i64, fill = 0xFF800000 : f32} : (tensor<5x6xf32>, tensor<i64>) -> tensor<5x6xf32>
  %p2 = graph.softmax %h2 {dim = 1 : i64} : (tensor<5x6xf32>) -> tensor<5x6xf32>
  %g2 = graph.mask %p2 below %m {dim = 1 : i64, fill = 0.0 : f32} : (tensor<5x6xf32>, tensor<i64>) -> tensor<5x6xf32>
  %w2 = graph.mask %v below %m {dim = 0 : i64, fill = 0.0 : f32} : (tensor<6x3xf32>, tensor<i64>) -> tensor<6x3xf32>
  %z = graph.matmul %g2, %w2 : (tensor<5x6xf32>, tensor<6x3xf32>) -> tensor<5x3xf32>
  func.return %y, %z : tensor<5x3xf32>, tensor<5x3xf32>
}

// CHECK:      output_required = [#graph.required<d0 < 0>, #graph.required<>]
// CHECK:      %y = graph.attention %q, {{%\S+}}, %v length %n
// CHECK-NOT:  graph.attention
// CHECK:      graph.mask {{%\S+}} below %n {dim = 1 : i64, fill = 0xff800000 : f32}
// CHECK-NEXT: graph.softmax
// CHECK-NEXT: graph.mask {{%\S+}} below %m
// CHECK-NEXT: graph.mask %v below %m
