// RUN: treadle-opt %s -p loop-to-cuda | filecheck %s
// RUN: treadle-opt %s -p loop-to-cuda -t cuda | filecheck %s --check-prefix=TEXT

loop.func @"flip 3"(%A : memref<64xf32>, %C : memref<64xf32>) grid(%b in 2) threads(%t in 32) resident 2 comment "Flip" {
  %c32 = arith.constant 32 : index
  %c31 = arith.constant 31 : index
  scf.for %i = %b to %c32 step %c32 {
    %tile = loop.alloc : memref<32xf32, #loop.space<shared>>
    %one = loop.alloc : memref<1xf32, #loop.space<register>>
    %first = arith.muli %b, %c32 : index
    %at = arith.addi %first, %t : index
    %x = memref.load %A[%at] : memref<64xf32>
    memref.store %x, %tile[%t] : memref<32xf32, #loop.space<shared>>
    loop.barrier
    %other = arith.subi %c31, %t : index
    %y = memref.load %tile[%other] : memref<32xf32, #loop.space<shared>>
    memref.store %y, %C[%at] : memref<64xf32>
  }
}

// CHECK:       cuda.kernel @flip_3(%A: memref<64xf32>, %C: memref<64xf32>) grid = [2, 1, 1] block = [32, 1, 1]
// CHECK-SAME:      attributes {comment = "Flip", resident = 2 : i64} {
// CHECK-NEXT:    %tile = cuda.alloc : memref<32xf32, #cuda.space<shared>>
// CHECK-NEXT:    %b = cuda.block_id x : index
// CHECK-NEXT:    %t = cuda.thread_id x : index
// CHECK:         scf.for
// CHECK-NEXT:      cuda.alloc : memref<1xf32, #cuda.space<local>>
// CHECK:           cuda.barrier
// CHECK:         cuda.return

// TEXT:       // Flip
// TEXT:       extern "C" __global__ void __launch_bounds__(32, 2) flip_3(const float *__restrict__ A, float *__restrict__ C) {
// TEXT-NEXT:      alignas(16) __shared__ float tile[32];
// TEXT:               treadle_barrier();
// TEXT-NEXT:          C[at] = tile[31 - t];
