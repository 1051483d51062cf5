// RUN: treadle-opt %s -p loop-flatten | filecheck %s

// Strides are those of the largest shape in every call: addresses have no extent in them, predicates and ends of loops do.
// An extent is a buffer of one element.
loop.func @rows(%n: memref<i64>, %A: memref<4x64xf32>, %C: memref<64x4xf32>) grid(%b in 4) threads(%t in 64) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %read = loop.load %n[] : memref<i64>
  %extent = arith.index_cast %read : i64 to index
  %in = arith.cmpi slt, %t, %extent : index
  %x = loop.load %A[%b, %t] where %in else %zero : memref<4x64xf32>
  scf.for %i = %c0 to %extent step %c1 {
    loop.store %x, %C[%i, %b] where %in : memref<64x4xf32>
  }
}

// CHECK:      loop.func @rows(%n: memref<1xi64>, %A: memref<256xf32>, %C: memref<256xf32>)
// CHECK:        %read = loop.load %n[%c0] : memref<1xi64>
// CHECK:        %in = arith.cmpi slt, %t, %extent : index
// CHECK-NEXT:   [[ROW:%\S+]] = arith.muli %b, %c64 : index
// CHECK-NEXT:   [[AT:%\S+]] = arith.addi [[ROW]], %t : index
// CHECK-NEXT:   %x = loop.load %A[[[AT]]] where %in else %zero
// CHECK-NEXT:   scf.for %i = %c0_1 to %extent step %c1 {
// CHECK-NEXT:     arith.muli %i, %c4 : index
