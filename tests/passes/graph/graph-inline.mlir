// RUN: treadle-opt %s -p graph-inline | filecheck %s

// SiLU reads its argument once.
func.func @silu(%x: tensor<8xf32>) -> tensor<8xf32> {
  %s = graph.compute "sigmoid" (%i) {
    %a = graph.at %x[%i] : tensor<8xf32>
    %n = arith.negf %a : f32
    %e = math.exp %n : f32
    %one = arith.constant 1.0 : f32
    %d = arith.addf %one, %e : f32
    %q = arith.divf %one, %d : f32
    graph.yield %q : f32
  } : tensor<8xf32>
  %y = graph.compute "mul" (%i) {
    %a = graph.at %x[%i] : tensor<8xf32>
    %b = graph.at %s[%i] : tensor<8xf32>
    %p = arith.mulf %a, %b : f32
    graph.yield %p : f32
  } : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// CHECK-LABEL: func.func @silu
// CHECK-NEXT:    %y = graph.compute "sigmoid mul" ([[I:%[0-9a-z_]+]]) {
// CHECK-NEXT:      [[A:%[0-9a-z_]+]] = graph.at %x[[[I]]] : tensor<8xf32>
// CHECK-NOT:       graph.at
// CHECK:           graph.yield
// CHECK-NEXT:    } : tensor<8xf32>
// CHECK-NEXT:    func.return %y

// An exponential is not repeated by a broadcast; a transpose of an argument is, by each reader.
func.func @kept(%x: tensor<4x8xf32>, %v: tensor<8xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  %e = graph.compute "exp" (%i) {
    %a = graph.at %v[%i] : tensor<8xf32>
    %p = math.exp %a : f32
    graph.yield %p : f32
  } : tensor<8xf32>
  %t = graph.compute "transpose" (%i, %j) {
    %a = graph.at %x[%j, %i] : tensor<4x8xf32>
    graph.yield %a : f32
  } : tensor<8x4xf32>
  %y = graph.compute "add" (%i, %j) {
    %a = graph.at %t[%i, %j] : tensor<8x4xf32>
    %b = graph.at %e[%i] : tensor<8xf32>
    %p = arith.addf %a, %b : f32
    graph.yield %p : f32
  } : tensor<8x4xf32>
  %z = graph.compute "neg" (%i, %j) {
    %a = graph.at %t[%i, %j] : tensor<8x4xf32>
    %n = arith.negf %a : f32
    graph.yield %n : f32
  } : tensor<8x4xf32>
  func.return %y, %z : tensor<8x4xf32>, tensor<8x4xf32>
}

// CHECK-LABEL: func.func @kept
// CHECK:         %e = graph.compute "exp"
// CHECK:         %y = graph.compute "transpose add" ([[I:%[0-9a-z_]+]], [[J:%[0-9a-z_]+]]) {
// CHECK:           graph.at %x[[[J]], [[I]]] : tensor<4x8xf32>
// CHECK:           graph.at %e[[[I]]] : tensor<8xf32>
// CHECK:         %z = graph.compute "transpose neg"
