// RUN: treadle-opt %s -p loop-prove-bounds | filecheck %s
// RUN: not treadle-opt %S/inputs/open-extent.mlir -p loop-prove-bounds 2>&1 | filecheck %s --check-prefix OPEN

// An extent is clamped to the largest shape where it is read: what is below it is inside. Of one that is not clamped
// nothing is known.
loop.func @proved(%n: memref<i64>, %A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 1) threads(%t in 128) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 64 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  %in = arith.cmpi slt, %t, %extent : index
  %x = loop.load %A[%t] where %in else %zero : memref<64xf32>
  loop.store %x, %C[%t] where %in : memref<64xf32>
  scf.for %i = %c0 to %extent step %c1 {
    %y = loop.load %A[%i] : memref<64xf32>
    loop.store %y, %C[%i] : memref<64xf32>
  }
}

// CHECK:      loop.load %A[%t] where %in else %zero
// CHECK:      scf.for %i = %c0 to %extent step %c1 {
// CHECK-NEXT:   loop.load %A[%i]

// OPEN: loop.load reads elements 0 to 127 of dimension 0 of %A : memref<64xf32>; accepted: 0 to 63
