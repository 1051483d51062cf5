// RUN: treadle-opt %s -p graph-define --split-input-file | filecheck %s
// RUN: treadle-opt %s -p graph-define --split-input-file | filecheck %s --check-prefix STATE

// The extent is data, which is clamped to what the tensor has; beyond it the tensor is not read.
func.func @main(%x: tensor<4x32xf32>, %n: tensor<i64>) -> tensor<4x32xf32> attributes {extents = ["n"]} {
  %m = graph.mask %x below %n {dim = 1 : i64, fill = 0xFF800000 : f32} : (tensor<4x32xf32>, tensor<i64>) -> tensor<4x32xf32>
  func.return %m : tensor<4x32xf32>
}

// CHECK:      %m = graph.compute "mask" ([[I:%.*]], [[J:%.*]]) {
// CHECK-NEXT:   [[READ:%.*]] = graph.at %n[] : tensor<i64>
// CHECK-NEXT:   [[MOST:%.*]] = arith.constant 32 : i64
// CHECK-NEXT:   [[LEAST:%.*]] = arith.minsi [[READ]], [[MOST]] : i64
// CHECK-NEXT:   [[ZERO:%.*]] = arith.constant 0 : i64
// CHECK-NEXT:   [[CLAMPED:%.*]] = arith.maxsi [[LEAST]], [[ZERO]] : i64
// CHECK-NEXT:   [[EXTENT:%.*]] = arith.index_cast [[CLAMPED]] : i64 to index
// CHECK-NEXT:   [[FILL:%.*]] = arith.constant 0xff800000 : f32
// CHECK-NEXT:   [[INSIDE:%.*]] = arith.cmpi slt, [[J]], [[EXTENT]] : index
// CHECK-NEXT:   graph.at %x[[[I]], [[J]]] where [[INSIDE]] else [[FILL]] : tensor<4x32xf32>

// -----

// What is appended to a state that nothing else reads stays; its definition would copy the state.
func.func @main(%x: tensor<2x3xf32>, %past: tensor<8x3xf32>, %n: tensor<i64>) -> (tensor<8x3xf32>, tensor<8x3xf32>)
    attributes {extents = ["n"], states = [#graph.state<1 -> 0>]} {
  %a = graph.append %past, %x at %n {dim = 0 : i64} : (tensor<8x3xf32>, tensor<2x3xf32>) -> tensor<8x3xf32>
  %b = graph.append %a, %x at %n {dim = 0 : i64} : (tensor<8x3xf32>, tensor<2x3xf32>) -> tensor<8x3xf32>
  func.return %a, %b : tensor<8x3xf32>, tensor<8x3xf32>
}

// STATE:      %a = graph.append %past, %x at %n
// STATE-NEXT: %b = graph.compute "append"
