// RUN: treadle-opt %s -p loop-to-cuda | filecheck %s

// The grid is that of the largest shape, and the extent a buffer in the memory of the device: a captured graph of launches
// holds for every call.
loop.func @rows(%n: memref<i64>, %A : memref<64xf32>, %C : memref<64xf32>) grid(%b in 2) threads(%t in 32) {
  %c32 = arith.constant 32 : index
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 64 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  %first = arith.muli %b, %c32 : index
  %at = arith.addi %first, %t : index
  %in = arith.cmpi slt, %at, %extent : index
  scf.if %in {
    %x = memref.load %A[%at] : memref<64xf32>
    memref.store %x, %C[%at] : memref<64xf32>
  }
}

// CHECK:      cuda.kernel @rows(%n: memref<i64>, %A: memref<64xf32>, %C: memref<64xf32>) grid = [2, 1, 1] block = [32, 1, 1]
// CHECK:        %read = memref.load %n[] : memref<i64>
// CHECK:        %in = arith.cmpi slt, %at, %extent : index
// CHECK-NEXT:   scf.if %in {
