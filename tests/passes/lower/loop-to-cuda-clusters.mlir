// RUN: treadle-opt %s -p loop-to-cuda | filecheck %s
// RUN: treadle-opt %s -p loop-to-cuda -t cuda | filecheck %s --check-prefix=TEXT

// Each block of a cluster stores a pair of numbers to each block, which waits for the bytes of all.
loop.func @exchange(%A : memref<256xf32>, %C : memref<2xf32>) grid(%b in 8) threads(%t in 32) cluster 4 {
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %parts = loop.alloc : memref<4x32x2xf32, #loop.space<shared>>
  %summed = loop.alloc : memref<1x!hopper.mbarrier, #loop.space<shared>>
  %first = arith.cmpi eq, %t, %c0 : index
  scf.if %first {
    hopper.mbarrier_init %summed[%c0], 1 : memref<1x!hopper.mbarrier, #loop.space<shared>>
    hopper.mbarrier_fence
    hopper.mbarrier_arrive %summed[%c0] expect 1024 : memref<1x!hopper.mbarrier, #loop.space<shared>>
  }
  loop.barrier
  hopper.cluster_arrive
  %rank = arith.remui %b, %c4 : index
  %to = arith.remui %t, %c4 : index
  %x = memref.load %A[%t] : memref<256xf32>
  %pair = vector.broadcast %x : f32 to vector<2xf32>
  hopper.cluster_wait
  hopper.store_async %pair to %parts[%rank, %t, %c0] at %summed[%c0] of %to
    : vector<2xf32>, memref<4x32x2xf32, #loop.space<shared>>, memref<1x!hopper.mbarrier, #loop.space<shared>>
  hopper.mbarrier_wait cluster %summed[%c0], %c0 : memref<1x!hopper.mbarrier, #loop.space<shared>>
}

// CHECK:       cuda.kernel @exchange(%A: memref<256xf32>, %C: memref<2xf32>) grid = [8, 1, 1] block = [32, 1, 1]
// CHECK-SAME:      attributes {cluster = 4 : i64} {
// CHECK:         hopper.cluster_arrive
// CHECK:         hopper.cluster_wait
// CHECK:         hopper.store_async %pair to %parts[%rank, %t, %c0] at %summed[%c0] of %to
// CHECK-SAME:      memref<4x32x2xf32, #cuda.space<shared>>, memref<1x!hopper.mbarrier, #cuda.space<shared>>
// CHECK:         hopper.mbarrier_wait cluster %summed[%c0], %c0

// TEXT:       extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(32) exchange(
// TEXT:           treadle_cluster_arrive();
// TEXT:           treadle_cluster_wait();
// TEXT-NEXT:      treadle_store_async(treadle_remote_address(parts_at, t % 4) + (int)blockIdx.x % 4 * 256 + t * 8, treadle_remote_address(summed_at, t % 4),
// TEXT-NEXT:      treadle_mbarrier_wait_cluster(summed_at, 0);
