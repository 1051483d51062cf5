// RUN: treadle-opt %s -p loop-vectorize{target=avx2} | filecheck %s --check-prefix=AVX2
// RUN: treadle-opt %s -p loop-vectorize{target=neon} | filecheck %s --check-prefix=NEON

// 64 elements are 8 vectors of an AVX2 core, and 16 of a NEON one.
loop.func @exponential(%X: memref<64xf32>, %Y: memref<64xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  scf.for %i = %c0 to %c64 step %c1 {
    %x = loop.load %X[%i] : memref<64xf32>
    %y = math.exp %x : f32
    loop.store %y, %Y[%i] : memref<64xf32>
  } {loop.vector}
}

// AVX2:      scf.for %i = %{{.*}} to %c8
// AVX2:        vector.load {{.*}} vector<8xf32>
// AVX2:        vector.store {{.*}} vector<8xf32>
// NEON:      scf.for %i = %{{.*}} to %c16
// NEON:        vector.load {{.*}} vector<4xf32>
// NEON:        vector.store {{.*}} vector<4xf32>
