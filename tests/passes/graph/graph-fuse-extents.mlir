// RUN: treadle-opt %s -p 'graph-define,graph-fuse{target="avx512"}' | filecheck %s

// A product over a dimension that changes. The mask of rows of the right operand is a prologue: a predicate that whole
// vectors share, which loop-end-sums takes away. That of the left one, which is read an element at a time for every
// panel, is stored once.
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x48xf32>, %n: tensor<i64>) -> tensor<64x48xf32>
    attributes {extents = ["n"], output_demand = [#graph.demanded<>]} {
  %a = graph.mask %x below %n {dim = 1 : i64, fill = 0.0 : f32} : (tensor<64x32xf32>, tensor<i64>) -> tensor<64x32xf32>
  %b = graph.mask %w below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<32x48xf32>, tensor<i64>) -> tensor<32x48xf32>
  %y = graph.matmul %a, %b : (tensor<64x32xf32>, tensor<32x48xf32>) -> tensor<64x48xf32>
  func.return %y : tensor<64x48xf32>
}

// CHECK:      %a = graph.fused "mask" {
// CHECK:      %y = graph.fused "mask_matmul" {
// CHECK-NEXT:   %b = graph.compute "mask"
// CHECK:          graph.at %n[] : tensor<i64>
// CHECK:        graph.matmul %a, %b
