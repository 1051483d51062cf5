// RUN: treadle-opt %s -p loop-unroll | filecheck %s

// A loop that ends at an extent is not unrolled, though its index is one of registers; one to a number is.
loop.func @rows(%n: memref<i64>, %A: memref<64xf32>) grid(%b in 1) threads(%t in 1) {
  %acc = loop.alloc : memref<4xf32, #loop.space<register>>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 4 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  scf.for %r = %c0 to %extent step %c1 {
    %v = loop.load %A[%r] : memref<64xf32>
    loop.store %v, %acc[%r] : memref<4xf32, #loop.space<register>>
  }
  scf.for %tap = %c0 to %c3 step %c1 {
    %in = arith.cmpi slt, %tap, %extent : index
    %v = loop.load %acc[%tap] : memref<4xf32, #loop.space<register>>
    loop.store %v, %A[%tap] where %in : memref<64xf32>
  }
}

// CHECK:      scf.for %r = %c0 to %extent step %c1 {
// CHECK:      {{^ *}}}{{$}}
// CHECK-NEXT: scf.for %tap
// CHECK:      } {loop.unroll}
