// RUN: treadle-opt %s -p 'schedule-instantiate{target=sm_80}' | filecheck %s

schedule.program @tiles for "cuda" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %i0, %i1, %i2, %i3 = schedule.split %i by (2, 1, 16)
  %j0, %j1, %j2, %j3 = schedule.split %j by (1, 2, 16)
  %k0, %k1, %k2 = schedule.split %k by (2, 16)
  schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2) mma(%i3, %j3, %k2)
  schedule.stage 0 at %k0 in "shared" vector 8
  schedule.stage 1 at %k0 in "shared" vector 8
}

// Blocks of 32 x 32 by two warps, which have two products of 16 x 16 each. Rows of both stages are 64 bytes.
// CHECK: loop.kernel @product ins(%A = %x : {{.*}}, %B = %w : {{.*}}) outs(%C : tensor<64x64xf16>) grid(%block in 4) threads(%thread in 64)
// CHECK-DAG: %shared0 = loop.alloc : memref<32x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
// CHECK-DAG: %shared1 = loop.alloc : memref<32x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
// CHECK: %acc = loop.alloc : memref<2x2xvector<2x2xf32>, #loop.space<register>>
// CHECK: scf.for %k
// CHECK: loop.barrier
// CHECK: loop.store {{.*}}, %shared0
// CHECK: loop.store {{.*}}, %shared1
// CHECK: loop.barrier
// CHECK: scf.for %k
// CHECK: loop.load_matrix %shared0[{{.*}}] : {{.*}} -> vector<4x2xf16>
// CHECK: task.for (%j0{{.*}}) in #task.map<repeat(2)> unroll {
// CHECK: loop.load_matrix transpose %shared1[{{.*}}] : {{.*}} -> vector<2x2x2xf16>
// CHECK: task.for (%j0{{.*}}) in #task.map<repeat(2)> unroll {
// CHECK: task.for (%h{{.*}}) in #task.map<repeat(2)> unroll {
// CHECK: loop.mma {{.*}} : vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>
// CHECK: task.for (%r, %c{{.*}}) in #task.map<repeat(1, 2) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)>
// CHECK: loop.store {{.*}}, %C[{{.*}}]
func.func @main(%x: tensor<64x64xf16>, %w: tensor<64x64xf16>) -> tensor<64x64xf16> {
  %y = graph.fused "product" {
    %m = graph.matmul %x, %w : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>
    graph.yield %m : tensor<64x64xf16>
  } schedule @tiles : tensor<64x64xf16>
  func.return %y : tensor<64x64xf16>
}
