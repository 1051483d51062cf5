// RUN: treadle-opt %s -p task-lower,loop-flatten,loop-simplify-index | filecheck %s
// RUN: treadle-opt %s -p task-lower,loop-flatten,loop-simplify-index,loop-lower-accesses,loop-to-cuda -t cuda | filecheck %s --check-prefix=TEXT

// Hidet (ASPLOS 2023), figure 13: block_mma with the tile products that it stands for. A fragment of C of 16 x 16
// elements is two of this project's, 16 x 8; what lies in a lane's registers is the mapping in `loop.mma`'s docstring.
//   warp = threadIdx.x / 32; for i, j in (spatial(2, 2) * repeat(2, 2))(warp): wmma(...)
// CHECK-LABEL: loop.func @block_mma
// CHECK:         scf.for %io =
// CHECK:           scf.for %jo =
// CHECK:             %a = loop.load_matrix %SmemA[%{{.*}}, %{{.*}}] : memref<64x16xf16, #loop.space<shared>> -> vector<4x2xf16>
// CHECK:             loop.load_matrix transpose %SmemB
// CHECK:             scf.for %h =
// CHECK:               loop.load %RegsC[%io, %jo, %h]
// CHECK:               loop.mma
// CHECK:               loop.store %{{.*}}, %RegsC[%io, %jo, %h]

// TEXT:      treadle_vec<float, 4> RegsC[2][2][2];
// TEXT:      const treadle_vec<unsigned, 4> pair = treadle_ldmatrix_x4_trans(&SmemB[
// TEXT:      RegsC[io][jo][h] = treadle_mma_m16n8k16_f16(a, treadle_part<treadle_vec<unsigned, 2>>(pair, h), RegsC[io][jo][h]);
loop.func @block_mma(%C: memref<4096xf32>) grid(%b in 1) threads(%t in 128) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %SmemA = loop.alloc : memref<64x16xf16, #loop.space<shared>>
  %SmemB = loop.alloc : memref<16x64xf16, #loop.space<shared>>
  %RegsC = loop.alloc : memref<2x2x2xvector<2x2xf32>, #loop.space<register>>
  %warp = arith.divui %t, %c32 : index
  %lane = arith.remui %t, %c32 : index
  %x = arith.remui %lane, %c16 : index
  %half = arith.divui %lane, %c16 : index
  %y = arith.muli %half, %c8 : index
  task.for (%i, %j) in #task.map<spatial(2, 2) * repeat(2, 2)>(%warp) {
    %row = arith.muli %i, %c16 : index
    %column = arith.muli %j, %c16 : index
    %p = arith.remui %i, %c2 : index
    %q = arith.remui %j, %c2 : index
    %m = arith.addi %row, %x : index
    %n = arith.addi %column, %y : index
    %a = loop.load_matrix %SmemA[%m, %y] : memref<64x16xf16, #loop.space<shared>> -> vector<4x2xf16>
    %pair = loop.load_matrix transpose %SmemB[%x, %n] : memref<16x64xf16, #loop.space<shared>> -> vector<2x2x2xf16>
    task.for (%h) in #task.map<repeat(2)> {
      %right = vector.extract %pair[%h] : vector<2x2xf16> from vector<2x2x2xf16>
      %c = loop.load %RegsC[%p, %q, %h] : memref<2x2x2xvector<2x2xf32>, #loop.space<register>>
      %d = loop.mma %a, %right, %c : vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>
      loop.store %d, %RegsC[%p, %q, %h] : memref<2x2x2xvector<2x2xf32>, #loop.space<register>>
    }
  }
}
