// RUN: treadle-opt %s --pipeline sm_80 --to kernels | filecheck %s
// RUN: treadle-opt %s --pipeline sm_80 --to loops | filecheck %s --check-prefix=LOOPS
// RUN: treadle-opt %s --pipeline sm_80 -t cuda | filecheck %s --check-prefix=TEXT

func.func @main(%x: tensor<256x96xf16>, %w: tensor<192x96xf16>) -> tensor<256x192xf16> attributes {input_names = ["x", "w"], output_names = ["y"]} {
  %t = graph.transpose %w {perm = array<i64: 1, 0>} : (tensor<192x96xf16>) -> tensor<96x192xf16>
  %m = graph.matmul %x, %t : (tensor<256x96xf16>, tensor<96x192xf16>) -> tensor<256x192xf16>
  %y = graph.unary "relu" %m : (tensor<256x192xf16>) -> tensor<256x192xf16>
  func.return %y : tensor<256x192xf16>
}

// The transpose is fused into the copies of B, whose rows in shared memory lie as they do in global memory.
// CHECK:      loop.kernel
// CHECK-DAG:  loop.alloc : memref<5x32x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
// CHECK-DAG:  loop.alloc : memref<5x64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
// CHECK:      loop.copy async (%{{.*}} in 8) to %shared_b
// CHECK:      loop.commit
// CHECK:      loop.wait 3
// CHECK-NEXT: loop.barrier
// CHECK:      loop.load_matrix %shared_a
// CHECK:      loop.load_matrix %shared_b
// CHECK:      loop.mma
// CHECK:      task.for (%{{.*}}, %{{.*}}) in #task.map<repeat(1, 4) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)>(
// CHECK:      arith.truncf %{{.*}} : f32 to f16
// CHECK:      loop.store %{{.*}}, %staged
// CHECK:      arith.maximumf
// CHECK:      loop.store %{{.*}}, %C

// LOOPS-NOT:     loop.copy
// LOOPS-COUNT-2: loop.async_copy 8
// LOOPS:         vector.store %{{.*}}, %C[

// TEXT:      __shared__ treadle_half shared_b[5][64][32];
// TEXT:      treadle_vec<float, 4> acc[1][2][2];
// TEXT:      {{\^}}
// TEXT:      treadle_cp_async_16(&shared_b[
// TEXT:      treadle_cp_async_wait<3>();
// TEXT-NEXT: treadle_barrier();
// TEXT:      treadle_vec<unsigned, 4> regs_a[1];
// TEXT:      = treadle_ldmatrix_x4(&shared_b[
// TEXT:      acc[0][p][q] = treadle_mma_m16n8k16_f16(regs_a[0], treadle_part<treadle_vec<unsigned, 2>>(regs_b[p], q), acc[0][p][q]);
// TEXT:      treadle_max(treadle_half_to_float(
// TEXT:      treadle_store(&C[
