// RUN: treadle-opt %s -p graph-define | filecheck %s

// Operators become their definitions; a constant of one element moves into the body, equal reads are one.
func.func @main(%x: tensor<1x4xf32>, %w: tensor<4x3xf32>) -> tensor<1x3xf32> {
  %two = graph.constant #graph.inline<"2.0"> : tensor<f32>
  %s = graph.binary "mul" %x, %x : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<1x4xf32>
  %y = graph.binary "mul" %s, %two : (tensor<1x4xf32>, tensor<f32>) -> tensor<1x4xf32>
  %m = graph.matmul %y, %w : (tensor<1x4xf32>, tensor<4x3xf32>) -> tensor<1x3xf32>
  func.return %m : tensor<1x3xf32>
}

// CHECK-NOT:  graph.constant
// CHECK:      %s = graph.compute "mul" ([[I:%[0-9a-z_]+]], [[J:%[0-9a-z_]+]]) {
// CHECK-NEXT:   %c0 = arith.constant 0 : index
// CHECK-NEXT:   [[A:%[0-9a-z_]+]] = graph.at %x[%c0, [[J]]] : tensor<1x4xf32>
// CHECK-NEXT:   [[P:%[0-9a-z_]+]] = arith.mulf [[A]], [[A]] : f32
// CHECK-NEXT:   graph.yield [[P]] : f32
// CHECK:      %y = graph.compute "mul"
// CHECK:        graph.at %s
// CHECK:        arith.constant 2.000000e+00 : f32
// CHECK:      %m = graph.matmul %y, %w
