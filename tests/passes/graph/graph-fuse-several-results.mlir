// RUN: treadle-opt %s -p graph-fuse | filecheck %s
// RUN: treadle-opt %s -p 'graph-fuse{explain=true}' 2>&1 | filecheck %s --check-prefix=EXPLAIN

// The sum is returned and clamped: the product's group stores both.
// CHECK-LABEL: func.func @residual
// CHECK:         %s, %r = graph.fused "matmul_add_relu" {
// CHECK:           [[S:%[0-9a-z_]+]] = graph.compute "add"
// CHECK:           [[R:%[0-9a-z_]+]] = graph.compute "relu"
// CHECK:           graph.yield [[S]], [[R]] : tensor<64x8xf32>, tensor<64x8xf32>
// CHECK-NEXT:    } : tensor<64x8xf32>, tensor<64x8xf32>
// EXPLAIN:       remark: %s (add) -> %r (relu): fused, as an epilogue of what is stored, too
func.func @residual(%x: tensor<64x8xf32>, %w: tensor<8x8xf32>) -> (tensor<64x8xf32>, tensor<64x8xf32>) {
  %m = graph.matmul %x, %w : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
  %s = graph.compute "add" (%i, %j) {
    %a = graph.at %m[%i, %j] : tensor<64x8xf32>
    %b = graph.at %x[%i, %j] : tensor<64x8xf32>
    %v = arith.addf %a, %b : f32
    graph.yield %v : f32
  } : tensor<64x8xf32>
  %r = graph.compute "relu" (%i, %j) {
    %zero = arith.constant 0.0 : f32
    %a = graph.at %s[%i, %j] : tensor<64x8xf32>
    %v = arith.maximumf %a, %zero : f32
    graph.yield %v : f32
  } : tensor<64x8xf32>
  func.return %s, %r : tensor<64x8xf32>, tensor<64x8xf32>
}

// The sums of rows need %e and give %d what it needs: one kernel of %e and %d would wait for them, and they for it.
// CHECK-LABEL: func.func @cycle
// CHECK:         %e = graph.fused "exp_kernel"
// CHECK:         %d = graph.fused "div_kernel"
// EXPLAIN:       remark: %e (exp) -> %d (div): not fused, it is stored anyway, as it leaves the function; fusing would make a cycle through %t (sum)
func.func @cycle(%x: tensor<64x99xf32>, %w: tensor<64xf32>) -> (tensor<64x99xf32>, tensor<64x99xf32>) {
  %e = graph.compute "exp" (%i, %j) {
    %a = graph.at %x[%i, %j] : tensor<64x99xf32>
    %v = math.exp %a : f32
    graph.yield %v : f32
  } : tensor<64x99xf32>
  %t = graph.compute "sum" (%i) {
    %s = graph.reduce add (%k in 99) {
      %a = graph.at %e[%i, %k] : tensor<64x99xf32>
      graph.yield %a : f32
    }
    graph.yield %s : f32
  } : tensor<64xf32>
  %d = graph.compute "div" (%i, %j) {
    %a = graph.at %e[%i, %j] : tensor<64x99xf32>
    %b = graph.at %t[%i] : tensor<64xf32>
    %v = arith.divf %a, %b : f32
    graph.yield %v : f32
  } : tensor<64x99xf32>
  func.return %e, %d : tensor<64x99xf32>, tensor<64x99xf32>
}
