// RUN: treadle-opt %s -p graph-merge-rows | filecheck %s

// The maximum of a row moves into what subtracts it, which reads the row anyway.
func.func @shifted(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %m = graph.compute "reduction_max" (%i, %z) {
    %r = graph.reduce max (%k in 8) {
      %a = graph.at %x[%i, %k] : tensor<4x8xf32>
      graph.yield %a : f32
    }
    graph.yield %r : f32
  } : tensor<4x1xf32>
  %y = graph.compute "sub" (%i, %j) {
    %zero = arith.constant 0 : index
    %a = graph.at %x[%i, %j] : tensor<4x8xf32>
    %b = graph.at %m[%i, %zero] : tensor<4x1xf32>
    %d = arith.subf %a, %b : f32
    graph.yield %d : f32
  } : tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// CHECK-LABEL: func.func @shifted
// CHECK-NEXT:    %y = graph.compute "reduction_max sub" ([[I:%.*]], [[J:%.*]]) {
// CHECK-NEXT:      [[A:%.*]] = graph.at %x[[[I]], [[J]]]
// CHECK-NEXT:      [[M:%.*]] = graph.reduce max ([[K:%.*]] in 8) {
// CHECK-NEXT:        graph.at %x[[[I]], [[K]]]
// CHECK:           arith.subf [[A]], [[M]]
// CHECK:         func.return %y

// A sum over columns is no part of a row.
func.func @kept(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %s = graph.compute "reduction_add" (%z, %j) {
    %r = graph.reduce add (%k in 4) {
      %a = graph.at %x[%k, %j] : tensor<4x8xf32>
      graph.yield %a : f32
    }
    graph.yield %r : f32
  } : tensor<1x8xf32>
  %y = graph.compute "softmax" (%i, %j) {
    %zero = arith.constant 0 : index
    %r = graph.reduce add (%k in 8) {
      %a = graph.at %s[%zero, %k] : tensor<1x8xf32>
      graph.yield %a : f32
    }
    %b = graph.at %x[%i, %j] : tensor<4x8xf32>
    %d = arith.divf %b, %r : f32
    graph.yield %d : f32
  } : tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// CHECK-LABEL: func.func @kept
// CHECK:         graph.compute "reduction_add"
// CHECK:         graph.compute "softmax"
