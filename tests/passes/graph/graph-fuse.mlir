// RUN: treadle-opt %s -p graph-fuse | filecheck %s
// RUN: treadle-opt %s -p 'graph-fuse{explain=true}' 2>&1 | filecheck %s --check-prefix=EXPLAIN

// The bias is an epilogue, the transpose a prologue; the exponential would be computed once a column.
func.func @main(%x: tensor<8x4xf32>, %w: tensor<6x8xf32>, %bias: tensor<6xf32>) -> tensor<4x6xf32> {
  %xt = graph.compute "transpose" (%i, %j) {
    %a = graph.at %x[%j, %i] : tensor<8x4xf32>
    graph.yield %a : f32
  } : tensor<4x8xf32>
  %e = graph.compute "exp transpose" (%i, %j) {
    %a = graph.at %w[%j, %i] : tensor<6x8xf32>
    %v = math.exp %a : f32
    graph.yield %v : f32
  } : tensor<8x6xf32>
  %m = graph.matmul %xt, %e : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %y = graph.compute "add" (%i, %j) {
    %a = graph.at %m[%i, %j] : tensor<4x6xf32>
    %b = graph.at %bias[%j] : tensor<6xf32>
    %v = arith.addf %a, %b : f32
    graph.yield %v : f32
  } : tensor<4x6xf32>
  func.return %y : tensor<4x6xf32>
}

// CHECK:      %e = graph.fused "exp_kernel" {
// CHECK:        graph.compute "exp transpose"
// CHECK:      %y = graph.fused "matmul_add" {
// CHECK-NEXT:   %xt = graph.compute "transpose"
// CHECK:        %m = graph.matmul %xt, %e
// CHECK-NEXT:   [[Y:%[0-9a-z_]+]] = graph.compute "add"
// CHECK:        graph.yield [[Y]] : tensor<4x6xf32>
// CHECK-NEXT: } : tensor<4x6xf32>

// EXPLAIN: remark: %m (matmul) -> %y (add): fused, as an epilogue
// EXPLAIN: remark: %e (exp transpose) -> %m (matmul): not fused, each element would be computed 4 times
// EXPLAIN: remark: %xt (transpose) -> %m (matmul): fused, as a prologue
