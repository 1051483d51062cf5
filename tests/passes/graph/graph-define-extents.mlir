// RUN: treadle-opt %s -p graph-define | filecheck %s

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
