// RUN: treadle-opt %s -p graph-fold-constants | filecheck %s

// Chains fold; what depends on an argument stays, and so does a broadcast to much more than its operand.

func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<1024x1024xf32>) {
  %a = graph.constant #graph.inline<"1.0, -inf"> : tensor<2xf32>
  %n = graph.unary "neg" %a : (tensor<2xf32>) -> tensor<2xf32>
  %m = graph.binary "add" %n, %n : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %y = graph.binary "mul" %x, %m : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %s = graph.constant #graph.inline<"2.0"> : tensor<f32>
  %b = graph.broadcast %s {shape = array<i64: 1024, 1024>} : (tensor<f32>) -> tensor<1024x1024xf32>
  func.return %y, %b : tensor<2xf32>, tensor<1024x1024xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT:   %m = graph.constant #graph.inline<"-2.0, inf"> : tensor<2xf32>
// CHECK-NEXT:   %y = graph.binary "mul" %x, %m
// CHECK-NEXT:   %s = graph.constant
// CHECK-NEXT:   %b = graph.broadcast %s
// CHECK-NEXT:   func.return %y, %b
