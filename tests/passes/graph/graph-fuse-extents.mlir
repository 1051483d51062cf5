// RUN: treadle-opt %s -p 'graph-define,graph-fuse{target="avx512"}' --split-input-file | filecheck %s

// A product over a dimension that changes. The masks of both operands' terms are prologues, though elements of the left
// one are read one at a time for every panel: loop-clamp-reductions takes the predicates away.
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x48xf32>, %n: tensor<i64>) -> tensor<64x48xf32>
    attributes {extents = ["n"], output_required = [#graph.required<>]} {
  %a = graph.mask %x below %n {dim = 1 : i64, fill = 0.0 : f32} : (tensor<64x32xf32>, tensor<i64>) -> tensor<64x32xf32>
  %b = graph.mask %w below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<32x48xf32>, tensor<i64>) -> tensor<32x48xf32>
  %y = graph.matmul %a, %b : (tensor<64x32xf32>, tensor<32x48xf32>) -> tensor<64x48xf32>
  func.return %y : tensor<64x48xf32>
}

// CHECK:      %y = graph.fused "mask_matmul" {
// CHECK-NEXT:   %a = graph.compute "mask"
// CHECK:          graph.at %n[] : tensor<i64>
// CHECK:        %b = graph.compute "mask"
// CHECK:          graph.at %n[] : tensor<i64>
// CHECK:        graph.matmul %a, %b

// -----

// Rows of the left operand are not what is summed over: their mask is stored once.
func.func @rows(%x: tensor<64x32xf32>, %w: tensor<32x48xf32>, %n: tensor<i64>) -> tensor<64x48xf32>
    attributes {extents = ["n"], output_required = [#graph.required<>]} {
  %a = graph.mask %x below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<64x32xf32>, tensor<i64>) -> tensor<64x32xf32>
  %y = graph.matmul %a, %w : (tensor<64x32xf32>, tensor<32x48xf32>) -> tensor<64x48xf32>
  func.return %y : tensor<64x48xf32>
}

// CHECK:      %a = graph.fused "mask" {
// CHECK:      %y = graph.fused "matmul" {
