// RUN: treadle-opt %s -p graph-fold-constants | filecheck %s

// A constant that is masked below an extent is none: the extent is data. What is computed before the mask is folded.
func.func @main(%n: tensor<i64>) -> tensor<4xf32> attributes {extents = ["n"]} {
  %c = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0"> : tensor<4xf32>
  %d = graph.unary "neg" %c : (tensor<4xf32>) -> tensor<4xf32>
  %m = graph.mask %d below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<4xf32>, tensor<i64>) -> tensor<4xf32>
  func.return %m : tensor<4xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT: %d = graph.constant #graph.inline<"-1.0, -2.0, -3.0, -4.0">
// CHECK-NEXT: %m = graph.mask %d below %n
