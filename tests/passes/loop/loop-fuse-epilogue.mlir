// RUN: treadle-opt %s -p loop-fuse-prologue,loop-fuse-epilogue | filecheck %s

// A consumer that reshapes, behind an anchor that reverses: tests/papers/hidet/figure-15.mlir.

// Other tensors that the consumer reads are loaded under the store's predicate; they become inputs of the kernel.
// CHECK-LABEL: func.func @residual
// CHECK-NEXT:    %y = loop.kernel @double ins(%A = %x : tensor<10xf32>, [[R:%[a-z0-9_]+]] = %r : tensor<10xf32>) outs(%B : tensor<10xf32>) grid(%b in 1) threads(%t in 16) {
// CHECK:           %v = loop.load %A[%t] where %in else %zero
// CHECK:           [[NONE:%[a-z0-9_]+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:      [[L:%[a-z0-9_]+]] = loop.load [[R]][%t] where %in else [[NONE]] : memref<10xf32>
// CHECK-NEXT:      [[S:%[a-z0-9_]+]] = arith.addf %v, [[L]] : f32
// CHECK-NEXT:      loop.store [[S]], %B[%t] where %in : memref<10xf32>
func.func @residual(%x: tensor<10xf32>, %r: tensor<10xf32>) -> tensor<10xf32> {
  %y = graph.fused "double" {
    %k = loop.kernel @double ins(%A = %x : tensor<10xf32>) outs(%B : tensor<10xf32>) grid(%b in 1) threads(%t in 16) {
      %ten = arith.constant 10 : index
      %zero = arith.constant 0.0 : f32
      %in = arith.cmpi slt, %t, %ten : index
      %v = loop.load %A[%t] where %in else %zero : memref<10xf32>
      loop.store %v, %B[%t] where %in : memref<10xf32>
    }
    %d = graph.compute (%i) {
      %e = graph.at %k[%i] : tensor<10xf32>
      %f = graph.at %r[%i] : tensor<10xf32>
      %s = arith.addf %e, %f : f32
      graph.yield %s : f32
    } : tensor<10xf32>
    graph.yield %d : tensor<10xf32>
  } : tensor<10xf32>
  func.return %y : tensor<10xf32>
}
