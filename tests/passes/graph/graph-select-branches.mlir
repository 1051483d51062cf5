// RUN: treadle-opt %s -p graph-select-branches | filecheck %s

// Both branches are computed, also those inside of them; functions that nothing calls any more are dropped.

func.func private @then(%x: tensor<4xf32>, %c: tensor<i1>) -> tensor<4xf32> {
  %a = graph.if %c @leaf @leaf (%x) : (tensor<i1>, tensor<4xf32>) -> tensor<4xf32>
  func.return %a : tensor<4xf32>
}
func.func private @else(%x: tensor<4xf32>, %c: tensor<i1>) -> tensor<4xf32> {
  func.return %x : tensor<4xf32>
}
func.func private @leaf(%x: tensor<4xf32>) -> tensor<4xf32> {
  %t = graph.unary "tanh" %x : (tensor<4xf32>) -> tensor<4xf32>
  func.return %t : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>, %c: tensor<i1>) -> tensor<4xf32> {
  %y = graph.if %c @then @else (%x, %c) : (tensor<i1>, tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK-NOT:  func.func private
// CHECK:      func.func @main
// CHECK-NEXT:   %[[A:.*]] = graph.unary "tanh" %x
// CHECK-NEXT:   %[[B:.*]] = graph.unary "tanh" %x
// CHECK-NEXT:   %[[T:.*]] = graph.where %c, %[[A]], %[[B]]
// CHECK-NEXT:   %y = graph.where %c, %[[T]], %x
// CHECK-NEXT:   func.return %y
