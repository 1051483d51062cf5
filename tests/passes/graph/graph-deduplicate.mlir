// RUN: treadle-opt %s -p graph-deduplicate | filecheck %s

func.func @main(%x: tensor<2x4xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<2x4xf32>, tensor<2x4xf32>) {
  %a = graph.reshape %x {shape = array<i64: 8>} : (tensor<2x4xf32>) -> tensor<8xf32>
  %b = graph.reshape %x {shape = array<i64: 8>} : (tensor<2x4xf32>) -> tensor<8xf32>
  %c = graph.unary "exp" %x : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %d = graph.unary "exp" %x : (tensor<2x4xf32>) -> tensor<2x4xf32>
  func.return %a, %b, %c, %d : tensor<8xf32>, tensor<8xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}
// CHECK:      %a = graph.reshape
// CHECK-NEXT: %c = graph.unary "exp"
// CHECK-NEXT: %d = graph.unary "exp"
// CHECK-NEXT: func.return %a, %a, %c, %d
