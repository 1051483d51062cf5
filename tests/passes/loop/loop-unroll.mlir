// RUN: treadle-opt %s -p loop-unroll | filecheck %s
// RUN: treadle-opt %s -p loop-unroll{target=avx2} | filecheck %s --check-prefix=AVX2
// RUN: treadle-opt %s -p "loop-unroll{register-limit=8 small-limit=2}" | filecheck %s --check-prefix LESS

// Marked: %r and %v reach an index of %acc, %tap is small and innermost. Not marked: %k, %m, and the panel's %row.
loop.func @marks(%A: memref<4096xf32>) grid(%b in 1) threads(%t in 1) {
  %acc = loop.alloc : memref<32xf32, #loop.space<register>>
  %panel = loop.alloc : memref<64x32xf32, #loop.space<register>>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %c16 = arith.constant 16 : index
  %c64 = arith.constant 64 : index
  scf.for %k = %c0 to %c64 step %c1 {
    scf.for %r = %c0 to %c16 step %c1 {
      scf.for %v = %c0 to %c4 step %c2 {
        %0 = arith.muli %r, %c2 : index
        %at = arith.addi %0, %v : index
        %a = loop.load %A[%k] : memref<4096xf32>
        loop.store %a, %acc[%at] : memref<32xf32, #loop.space<register>>
      }
    }
  }
  scf.for %m = %c0 to %c4 step %c1 {
    scf.for %tap = %c0 to %c3 step %c1 {
      %a = loop.load %A[%tap] : memref<4096xf32>
      loop.store %a, %A[%m] : memref<4096xf32>
    }
  }
  scf.for %row = %c0 to %c64 step %c1 {
    %a = loop.load %A[%row] : memref<4096xf32>
    loop.store %a, %panel[%row, %c0] : memref<64x32xf32, #loop.space<register>>
  }
}

// CHECK:      scf.for %k
// CHECK-NEXT:   scf.for %r
// CHECK-NEXT:     scf.for %v
// CHECK:          } {loop.unroll}
// CHECK-NEXT:   } {loop.unroll}
// CHECK-NEXT: }
// CHECK-NEXT: scf.for %m
// CHECK-NEXT:   scf.for %tap
// CHECK:        } {loop.unroll}
// CHECK-NEXT: }
// CHECK-NEXT: scf.for %row
// CHECK-NOT:  loop.unroll

// LESS:      scf.for %v
// LESS:      } {loop.unroll}
// LESS-NOT:  loop.unroll

// Elements that are vectors count by their lanes: 8 x 2 are registers, the panel of 27 x 2 is memory. An AVX2
// core has registers for half of these 8 x 2.
loop.func @vectors(%A: memref<4096xf32>) grid(%b in 1) threads(%t in 1) {
  %acc = loop.alloc : memref<8x2xvector<16xf32>, #loop.space<register>>
  %panel = loop.alloc : memref<27x2xvector<16xf32>, #loop.space<register>>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  %c27 = arith.constant 27 : index
  scf.for %k = %c0 to %c27 step %c1 {
    %v = memref.load %panel[%k, %c0] : memref<27x2xvector<16xf32>, #loop.space<register>>
    scf.for %r = %c0 to %c16 step %c1 {
      memref.store %v, %acc[%r, %c1] : memref<8x2xvector<16xf32>, #loop.space<register>>
    }
  }
}

// AVX2-LABEL: loop.func @vectors
// AVX2-NOT:     loop.unroll
// CHECK-LABEL: loop.func @vectors
// CHECK:         memref.store
// CHECK-NEXT:    } {loop.unroll}
// CHECK-NEXT:  }
// CHECK-NEXT: }
