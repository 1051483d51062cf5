// RUN: treadle-opt %s -p graph-inline-control --split-input-file | filecheck %s

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

// -----

// Iterations one after the other; their rows are joined.

func.func private @step(%i: tensor<i64>, %s: tensor<2xi64>, %w: tensor<2xi64>) -> (tensor<2xi64>, tensor<2xi64>) {
  %a = graph.binary "add" %s, %w : (tensor<2xi64>, tensor<2xi64>) -> tensor<2xi64>
  %b = graph.broadcast %i {shape = array<i64: 2>} : (tensor<i64>) -> tensor<2xi64>
  func.return %a, %b : tensor<2xi64>, tensor<2xi64>
}
func.func @main(%x: tensor<2xi64>, %w: tensor<2xi64>) -> (tensor<2xi64>, tensor<2x2xi64>) {
  %y, %rows = graph.loop @step times 2 carries (%x) reads (%w) : (tensor<2xi64>, tensor<2xi64>) -> (tensor<2xi64>, tensor<2x2xi64>)
  func.return %y, %rows : tensor<2xi64>, tensor<2x2xi64>
}

// CHECK-NOT:  func.func private
// CHECK:      func.func @main
// CHECK:        %[[FIRST:.*]] = graph.constant #graph.inline<"0">
// CHECK:        %[[A:.*]] = graph.binary "add" %x, %w
// CHECK:        %[[SECOND:.*]] = graph.constant #graph.inline<"1">
// CHECK:        %[[Y:.*]] = graph.binary "add" %[[A]], %w
// CHECK:        graph.concat
// CHECK-NEXT:   func.return %[[Y]]
