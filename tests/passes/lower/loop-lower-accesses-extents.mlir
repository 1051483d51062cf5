// RUN: treadle-opt %s -p loop-lower-accesses | filecheck %s

// What is read or stored below an extent is in a branch on it.
loop.func @k(%n: memref<i64>, %A : memref<64xf32>, %C : memref<64xf32>) grid(%b in 1) threads(%t in 64) {
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
}

// CHECK:      %in = arith.cmpi slt, %t, %extent : index
// CHECK-NEXT: %x = scf.if %in -> (f32) {
// CHECK-NEXT:   memref.load %A[%t]
// CHECK:      } else {
// CHECK-NEXT:   scf.yield %zero : f32
// CHECK:      scf.if %in {
// CHECK-NEXT:   memref.store %x, %C[%t]
