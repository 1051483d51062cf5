// RUN: treadle-opt %s -p graph-fuse | filecheck %s
// RUN: treadle-opt %s -p 'graph-fuse{explain=true}' 2>&1 | filecheck %s --check-prefix=EXPLAIN
// RUN: treadle-opt %s -p 'graph-fuse{target="sm_80" explain=true}' 2>&1 | filecheck %s --check-prefix=CUDA

// The bias is an epilogue, the transpose a prologue. The exponential would be computed one element after the other,
// which takes as long as a vector of them each; a GPU does so anyway.
func.func @main(%x: tensor<8x64xf32>, %w: tensor<60x8xf32>, %bias: tensor<60xf32>) -> tensor<64x60xf32> {
  %e = graph.compute "exp transpose" (%i, %j) {
    %a = graph.at %x[%j, %i] : tensor<8x64xf32>
    %v = math.exp %a : f32
    graph.yield %v : f32
  } : tensor<64x8xf32>
  %wt = graph.compute "transpose" (%i, %j) {
    %a = graph.at %w[%j, %i] : tensor<60x8xf32>
    graph.yield %a : f32
  } : tensor<8x60xf32>
  %m = graph.matmul %e, %wt : (tensor<64x8xf32>, tensor<8x60xf32>) -> tensor<64x60xf32>
  %y = graph.compute "add" (%i, %j) {
    %a = graph.at %m[%i, %j] : tensor<64x60xf32>
    %b = graph.at %bias[%j] : tensor<60xf32>
    %v = arith.addf %a, %b : f32
    graph.yield %v : f32
  } : tensor<64x60xf32>
  func.return %y : tensor<64x60xf32>
}

// CHECK:      %e = graph.fused "exp_kernel" {
// CHECK:        graph.compute "exp transpose"
// CHECK:      %y = graph.fused "matmul_add" {
// CHECK-NEXT:   %wt = graph.compute "transpose"
// CHECK:        %m = graph.matmul %e, %wt
// CHECK-NEXT:   [[Y:%[0-9a-z_]+]] = graph.compute "add"
// CHECK:        graph.yield [[Y]] : tensor<64x60xf32>
// CHECK-NEXT: } : tensor<64x60xf32>

// EXPLAIN: remark: %e (exp transpose) -> %m (matmul): not fused, each element would be computed 16 times, which costs more than storing it
// EXPLAIN: remark: %wt (transpose) -> %m (matmul): fused, as a prologue
// EXPLAIN: remark: %m (matmul) -> %y (add): fused, as an epilogue
// EXPLAIN: remark: %y (add) -> (func.return): not fused, the result leaves the function

// CUDA: remark: %e (exp transpose) -> %m (matmul): fused, as a prologue
