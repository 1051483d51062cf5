// RUN: treadle-opt %s -p graph-deduplicate | filecheck %s

// Positions that each layer computes anew: their rows of a table are gathered once, and one integer is computed once.
func.func @main(%past: tensor<1xi64>, %numbers: tensor<4xi64>, %table: tensor<64x8xf32>, %x: tensor<4x8xf32>)
    -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4xi64>, tensor<1xi64>, tensor<1xi64>) {
  %one = graph.constant #graph.inline<"1"> : tensor<1xi64>
  %n = graph.binary "add" %past, %one : (tensor<1xi64>, tensor<1xi64>) -> tensor<1xi64>
  %p = graph.binary "add" %numbers, %n : (tensor<4xi64>, tensor<1xi64>) -> tensor<4xi64>
  %a = graph.gather %table, %p {dim = 0 : i64} : (tensor<64x8xf32>, tensor<4xi64>) -> tensor<4x8xf32>
  %m = graph.binary "add" %past, %one : (tensor<1xi64>, tensor<1xi64>) -> tensor<1xi64>
  %q = graph.binary "add" %numbers, %m : (tensor<4xi64>, tensor<1xi64>) -> tensor<4xi64>
  %b = graph.gather %table, %q {dim = 0 : i64} : (tensor<64x8xf32>, tensor<4xi64>) -> tensor<4x8xf32>
  %r = graph.binary "add" %numbers, %m : (tensor<4xi64>, tensor<1xi64>) -> tensor<4xi64>
  func.return %a, %b, %r, %n, %m : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4xi64>, tensor<1xi64>, tensor<1xi64>
}
// CHECK:      %n = graph.binary "add" %past, %one
// CHECK-NEXT: %p = graph.binary "add" %numbers, %n
// CHECK-NEXT: %a = graph.gather %table, %p
// CHECK-NEXT: %r = graph.binary "add" %numbers, %n
// CHECK-NEXT: func.return %a, %a, %r, %n, %n
