// RUN: treadle-opt %s -p graph-define,graph-merge-rows | filecheck %s

// Statistics of masked rows, and what they scale, are one definition; the extent is read for the mask alone.
func.func @main(%x: tensor<4x32xf32>, %n: tensor<i64>) -> tensor<4x32xf32> attributes {extents = ["n"]} {
  %m = graph.mask %x below %n {dim = 1 : i64, fill = -0.0 : f32} : (tensor<4x32xf32>, tensor<i64>) -> tensor<4x32xf32>
  %s = graph.reduction "add" %m {dims = array<i64: 1>, keep = 1 : i64} : (tensor<4x32xf32>) -> tensor<4x1xf32>
  %y = graph.binary "sub" %m, %s : (tensor<4x32xf32>, tensor<4x1xf32>) -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

// CHECK:      %m = graph.compute "mask"
// CHECK:        graph.at %n[] : tensor<i64>
// CHECK:      %y = graph.compute
// CHECK:        graph.reduce add
// CHECK:        arith.subf
// CHECK-NOT:  graph.compute
