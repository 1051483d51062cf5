// RUN: treadle-opt %s -p graph-inline-control | filecheck %s

// A branch on what a call's extent decides; what @main says of extents stays.

func.func private @then(%x: tensor<4xf32>) -> tensor<4xf32> {
  %t = graph.unary "tanh" %x : (tensor<4xf32>) -> tensor<4xf32>
  func.return %t : tensor<4xf32>
}
func.func private @else(%x: tensor<4xf32>) -> tensor<4xf32> {
  func.return %x : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>, %c: tensor<i1>, %n: tensor<i64>) -> tensor<4xf32>
    attributes {symbols = ["n:1..4"], input_extents = [["n"], []], extents = ["n"], output_extents = [["n"]]} {
  %y = graph.if %c @then @else (%x) : (tensor<i1>, tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK-NOT:  func.func private
// CHECK:      func.func @main
// CHECK-SAME:   extents = ["n"]
// CHECK:        %[[T:.*]] = graph.unary "tanh" %x
// CHECK-NEXT:   graph.where %c, %[[T]], %x
