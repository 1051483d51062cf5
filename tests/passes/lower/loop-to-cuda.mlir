// RUN: treadle-opt %s -p loop-to-cuda | filecheck %s
// RUN: treadle-opt %s -p loop-to-cuda -t cuda | filecheck %s --check-prefix=TEXT

loop.func @"flip 3"(%A : memref<64xf32>, %C : memref<64xf32>) grid(%b in 2) threads(%t in 32) min_blocks_per_sm 2 comment "Flip" {
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
// CHECK-SAME:      attributes {comment = "Flip", min_blocks_per_sm = 2 : i64} {
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

// Four lanes fold in two rounds.
loop.func @fold(%A : memref<32xf32>, %C : memref<32xf32>) grid(%b in 1) threads(%t in 32) {
  %x = memref.load %A[%t] : memref<32xf32>
  %s = loop.warp_reduce add %x over 4 : f32
  memref.store %s, %C[%t] : memref<32xf32>
}

// CHECK:       cuda.kernel @fold
// CHECK:         [[TWO:%.*]] = arith.constant 2 : index
// CHECK-NEXT:    [[A:%.*]] = cuda.shuffle xor %x, [[TWO]] : f32
// CHECK-NEXT:    [[B:%.*]] = arith.addf %x, [[A]] : f32
// CHECK-NEXT:    [[ONE:%.*]] = arith.constant 1 : index
// CHECK-NEXT:    [[C:%.*]] = cuda.shuffle xor [[B]], [[ONE]] : f32
// CHECK-NEXT:    %s = arith.addf [[B]], [[C]] : f32
// CHECK-NEXT:    memref.store %s

// Lanes read another lane's value.
loop.func @other(%A : memref<32xf32>, %C : memref<32xf32>) grid(%b in 1) threads(%t in 32) {
  %c31 = arith.constant 31 : index
  %x = memref.load %A[%t] : memref<32xf32>
  %l = arith.subi %c31, %t : index
  %s = loop.shuffle %x from %l : f32
  memref.store %s, %C[%t] : memref<32xf32>
}

// CHECK:       cuda.kernel @other
// CHECK:         %s = cuda.shuffle idx %x, %l : f32
// CHECK-NEXT:    memref.store %s

// Copies and tile products of the loop dialect have one operation each.
loop.func @tiles(%A : memref<4096xf16>, %C : memref<64xf32>) grid(%b in 2) threads(%t in 32) {
  %tile = loop.alloc : memref<32x32xf16, #loop.space<shared>>
  %floats = loop.alloc : memref<32x32xf32, #loop.space<shared>>
  %c0 = arith.constant 0 : index
  %in = arith.cmpi slt, %t, %b : index
  %c = arith.constant dense<0.0> : vector<2x2xf32>
  loop.async_copy 8 %A[%c0], %tile[%t, %c0] where %in : memref<4096xf16>, memref<32x32xf16, #loop.space<shared>>
  loop.commit
  loop.wait 1
  %a = loop.load_matrix %tile[%t, %c0] : memref<32x32xf16, #loop.space<shared>> -> vector<4x2xf16>
  %pair = loop.load_matrix transpose %tile[%t, %c0] : memref<32x32xf16, #loop.space<shared>> -> vector<2x2x2xf16>
  %right = vector.extract %pair[1] : vector<2x2xf16> from vector<2x2x2xf16>
  %d = loop.mma %a, %right, %c : vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>
  %x = loop.load_matrix %floats[%t, %c0] : memref<32x32xf32, #loop.space<shared>> -> vector<4x1xf32>
  %y = loop.load_matrix %floats[%t, %c0] : memref<32x32xf32, #loop.space<shared>> -> vector<2x1xf32>
  %r = loop.round_tf32 %x : vector<4x1xf32>
  %f = loop.mma %r, %y, %d : vector<4x1xf32>, vector<2x1xf32>, vector<2x2xf32>
  %v = vector.extract %f[%t, 1] : f32 from vector<2x2xf32>
  memref.store %v, %C[%t] : memref<64xf32>
}

// CHECK-LABEL: cuda.kernel @tiles
// CHECK:         cuda.cp_async %A[%c0], %tile[%t, %c0] bytes 16 where %in
// CHECK-NEXT:    cuda.cp_async_commit
// CHECK-NEXT:    cuda.cp_async_wait 1
// CHECK-NEXT:    %a = cuda.ldmatrix %tile[%t, %c0] : memref<32x32xf16, #cuda.space<shared>> -> vector<4x2xf16>
// CHECK-NEXT:    %pair = cuda.ldmatrix transpose %tile[%t, %c0]
// CHECK:         %d = cuda.mma m16n8k16 %a, %right, %c
// CHECK:         %r = cuda.round_tf32 %x : vector<4x1xf32>
// CHECK-NEXT:    %f = cuda.mma m16n8k8 %r, %y, %d

// TEXT-LABEL: tiles(
// TEXT:         treadle_cp_async_16(&tile[t][0], &A[0], t < (int)blockIdx.x);
// TEXT:         treadle_mma_m16n8k16_f16(a, treadle_part<treadle_vec<unsigned, 2>>(pair, 1), treadle_vec<float, 4>{});
// TEXT:         const treadle_vec<float, 4> x = treadle_as_float(treadle_ldmatrix_x4(&floats[t][0]));
// TEXT:         treadle_mma_m16n8k8_tf32(treadle_round_tf32(x), y, d);
// TEXT:         C[t] = f.v[t * 2 + 1];

// Of bytes four fill a register; the operands' types say their signs.
loop.func @bytes(%C : memref<64xi32>) grid(%b in 2) threads(%t in 32) {
  %left = loop.alloc : memref<32x32xui8, #loop.space<shared>>
  %columns = loop.alloc : memref<32x32xi8, #loop.space<shared>>
  %c0 = arith.constant 0 : index
  %c = arith.constant dense<0> : vector<2x2xi32>
  %a = loop.load_matrix %left[%t, %c0] : memref<32x32xui8, #loop.space<shared>> -> vector<4x4xui8>
  %pair = loop.load_matrix %columns[%t, %c0] : memref<32x32xi8, #loop.space<shared>> -> vector<2x2x4xi8>
  %right = vector.extract %pair[1] : vector<2x4xi8> from vector<2x2x4xi8>
  %d = loop.mma %a, %right, %c : vector<4x4xui8>, vector<2x4xi8>, vector<2x2xi32>
  %v = vector.extract %d[%t, 1] : i32 from vector<2x2xi32>
  memref.store %v, %C[%t] : memref<64xi32>
}

// CHECK-LABEL: cuda.kernel @bytes
// CHECK:         %a = cuda.ldmatrix %left[%t, %c0] : memref<32x32xui8, #cuda.space<shared>> -> vector<4x4xui8>
// CHECK:         %d = cuda.mma m16n8k32 %a, %right, %c : vector<4x4xui8>, vector<2x4xi8>, vector<2x2xi32>

// TEXT-LABEL: bytes(
// TEXT:         alignas(16) __shared__ unsigned char left[32][32];
// TEXT:         const treadle_vec<unsigned, 4> a = treadle_ldmatrix_x4(&left[t][0]);
// TEXT:         const treadle_vec<unsigned, 4> pair = treadle_ldmatrix_x4(&columns[t][0]);
// TEXT:         treadle_mma_m16n8k32_u8_s8(a, treadle_part<treadle_vec<unsigned, 2>>(pair, 1), treadle_vec<int, 4>{});
// TEXT:         C[t] = d.v[t * 2 + 1];

// One thread counts its block, between barriers; shared memory tells the others. Counters are global memory.
loop.func @arrive(%A : memref<32xf32>, %n : memref<4xi32, #loop.space<zeroed>>, %C : memref<32xf32>)
    grid(%b in 8) threads(%t in 32) {
  %c4 = arith.constant 4 : index
  %tile = arith.remui %b, %c4 : index
  %last = loop.arrive %n[%tile] of 2 : memref<4xi32, #loop.space<zeroed>>
  scf.if %last {
    %x = memref.load %A[%t] : memref<32xf32>
    memref.store %x, %C[%t] : memref<32xf32>
  }
}

// CHECK:       cuda.kernel @arrive(%A: memref<32xf32>, %n: memref<4xi32>, %C: memref<32xf32>)
// CHECK-NEXT:    %last_flag = cuda.alloc : memref<1xi32, #cuda.space<shared>>
// CHECK:         cuda.barrier
// CHECK-NEXT:    scf.if
// CHECK-NEXT:      %last = cuda.arrive %n[%tile] of 2 : memref<4xi32>
// CHECK-NEXT:      [[W:%.*]] = arith.extui %last : i1 to i32
// CHECK-NEXT:      memref.store [[W]], %last_flag
// CHECK:         cuda.barrier
// CHECK-NEXT:    [[T:%.*]] = memref.load %last_flag
// CHECK-NEXT:    [[L:%.*]] = arith.cmpi ne, [[T]], {{.*}} : i32
// CHECK-NEXT:    scf.if [[L]] {

// TEXT-LABEL: arrive(const float *__restrict__ A, int *n, float *__restrict__ C) {
// TEXT:         treadle_barrier();
// TEXT-NEXT:    if (t == 0) {
// TEXT-NEXT:        const bool last = treadle_arrive(&n[(int)blockIdx.x % 4], 2);
// TEXT-NEXT:        last_flag[0] = (int)last;
// TEXT-NEXT:    }
// TEXT-NEXT:    treadle_barrier();
// TEXT-NEXT:    if (last_flag[0] != 0) {
