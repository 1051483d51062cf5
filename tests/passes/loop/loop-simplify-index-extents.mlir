// RUN: treadle-opt %s -p loop-simplify-index | filecheck %s

// What the clamp of an extent decides goes: a comparison that never holds, and that with the largest shape. What
// depends on the call stays.
loop.func @clamped(%n: memref<i64>, %A: memref<64xf32>, %Y: memref<64xf32>) grid(%b in 2) threads(%t in 32) {
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %c65 = arith.constant 65 : index
  %zero = arith.constant 0.0 : f32
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 64 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  %0 = arith.muli %b, %c32 : index
  %at = arith.addi %0, %t : index
  %never = arith.cmpi sge, %extent, %c65 : index
  %always = arith.cmpi slt, %at, %c64 : index
  %inside = arith.cmpi slt, %at, %extent : index
  %both = arith.andi %always, %inside : i1
  %x = loop.load %A[%at] where %both else %zero : memref<64xf32>
  scf.if %never {
    loop.store %zero, %Y[%at] : memref<64xf32>
  }
  loop.store %x, %Y[%at] where %both : memref<64xf32>
}

// CHECK:      %extent = arith.index_cast
// CHECK-NOT:  scf.if
// CHECK:      %inside = arith.cmpi slt, %at, %extent : index
// CHECK-NEXT: %x = loop.load %A[%at] where %inside else %zero
// CHECK-NEXT: loop.store %x, %Y[%at] where %inside
