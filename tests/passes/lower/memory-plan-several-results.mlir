// RUN: treadle-opt %s -p memory-plan | filecheck %s

// A launch writes a buffer for each result: one leaves the function, the others share the arena, and no byte. What
// the kernels do is the same, but not what is written last: they share a function.
func.func @main(%x: tensor<32xf32>) -> (tensor<32xf32>, tensor<32xf32>) {
  %a, %b = loop.kernel @both ins(%X = %x : tensor<32xf32>) outs(%A : tensor<32xf32>, %B : tensor<32xf32>) grid(%n in 32) threads(%t in 1) {
    %v = memref.load %X[%n] : memref<32xf32>
    memref.store %v, %A[%n] : memref<32xf32>
    memref.store %v, %B[%n] : memref<32xf32>
  }
  %c, %d = loop.kernel @again ins(%Y = %b : tensor<32xf32>) outs(%C : tensor<32xf32>, %D : tensor<32xf32>) grid(%n in 32) threads(%t in 1) {
    %v = memref.load %Y[%n] : memref<32xf32>
    memref.store %v, %C[%n] : memref<32xf32>
    memref.store %v, %D[%n] : memref<32xf32>
  }
  %e = loop.kernel @add ins(%V = %c : tensor<32xf32>, %W = %d : tensor<32xf32>) outs(%E : tensor<32xf32>) grid(%n in 32) threads(%t in 1) {
    %v = memref.load %V[%n] : memref<32xf32>
    %w = memref.load %W[%n] : memref<32xf32>
    %s = arith.addf %v, %w : f32
    memref.store %s, %E[%n] : memref<32xf32>
  }
  func.return %a, %e : tensor<32xf32>, tensor<32xf32>
}

// CHECK:      loop.func @both(%X: memref<32xf32>, %A: memref<32xf32>, %B: memref<32xf32>) outputs 2 grid(%n in 32)
// CHECK-NOT:  @again
// CHECK:      arena_bytes = 384
// CHECK:        %a = host.buffer output 0
// CHECK:        host.launch @both(%x, %a, %b) : memref<32xf32>, memref<32xf32>, memref<32xf32>
// CHECK-NEXT:   host.launch @both(%b, %c, %d) : memref<32xf32>, memref<32xf32>, memref<32xf32>
// CHECK-NEXT:   host.launch @add(%c, %d, %e)
