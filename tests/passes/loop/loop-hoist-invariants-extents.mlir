// RUN: treadle-opt %s -p loop-hoist-invariants | filecheck %s

// What is computed from an extent leaves the loop, but for a quotient: an extent may be 0.
loop.func @hoist(%n: memref<i64>, %A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 2) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c32 = arith.constant 32 : index
  %zero = arith.constant 0.0 : f32
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 64 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  scf.for %i = %c0 to %c32 step %c1 {
    %first = arith.muli %b, %c32 : index
    %rest = arith.subi %extent, %first : index
    %at = arith.addi %first, %i : index
    %inside = arith.cmpi slt, %i, %rest : index
    %none = arith.cmpi sge, %first, %extent : index
    %share = arith.divui %first, %extent : index
    %v = loop.load %A[%at] where %inside else %zero : memref<64xf32>
    scf.if %none {
      loop.store %zero, %C[%share] : memref<64xf32>
    }
    loop.store %v, %C[%at] where %inside : memref<64xf32>
  }
}

// CHECK:      %extent = arith.index_cast
// CHECK:      %rest = arith.subi %extent, %first : index
// CHECK-NEXT: %none = arith.cmpi sge, %first, %extent : index
// CHECK-NEXT: scf.for %i
// CHECK:        %inside = arith.cmpi slt, %i, %rest : index
// CHECK-NEXT:   %share = arith.divui %first, %extent : index
// CHECK:        loop.load %A[%at] where %inside else %zero
