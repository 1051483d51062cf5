// RUN: treadle-opt %s -p graph-define,graph-inline | filecheck %s

// A mask that two read is computed once, in a tensor of its own; a transpose goes through to it, and with it what is
// required. A mask with one reader moves into it, extent, clamp and predicate.
func.func @main(%x: tensor<4x8xf32>, %n: tensor<i64>) -> (tensor<8x4xf32>, tensor<4xf32>, tensor<4x8xf32>)
    attributes {extents = ["n"], output_required = [#graph.required<d0 < 0>, #graph.required<>, #graph.required<d0 < 0>]} {
  %m = graph.mask %x below %n {dim = 1 : i64, fill = 0.0 : f32} : (tensor<4x8xf32>, tensor<i64>) -> tensor<4x8xf32>
  %t = graph.transpose %m {perm = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %e = graph.unary "neg" %t : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %s = graph.reduction "add" %m {dims = array<i64: 1>, keep = 0 : i64} : (tensor<4x8xf32>) -> tensor<4xf32>
  %k = graph.mask %x below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<4x8xf32>, tensor<i64>) -> tensor<4x8xf32>
  %y = graph.unary "exp" %k : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %e, %s, %y : tensor<8x4xf32>, tensor<4xf32>, tensor<4x8xf32>
}

// CHECK:      output_required = [#graph.required<d0 < 0>, #graph.required<>, #graph.required<d0 < 0>]
// CHECK:      %m = graph.compute "mask"
// CHECK:        graph.at %n[] : tensor<i64>
// CHECK:      %e = graph.compute "transpose neg" ([[I:%\S+]], [[J:%\S+]]) {
// CHECK-NEXT:   graph.at %m[[[J]], [[I]]] : tensor<4x8xf32>
// CHECK:      %s = graph.compute "reduction_add"
// CHECK:      %y = graph.compute "mask exp" ([[P:%\S+]], [[Q:%\S+]]) {
// CHECK:        [[N:%\S+]] = graph.at %n[] : tensor<i64>
// CHECK:        [[INSIDE:%\S+]] = arith.cmpi slt, [[P]], {{%\S+}} : index
// CHECK:        graph.at %x[[[P]], [[Q]]] where [[INSIDE]] else
// CHECK-NEXT:   math.exp
