// RUN: treadle-opt %s -p loop-to-c --split-input-file | filecheck %s

// Blocks beyond twice the extent do nothing: workers share those before. What is tested with it is left to the blocks.
loop.func @first(%n: memref<i64>, %A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 64) threads(%t in 1) {
  %c2 = arith.constant 2 : index
  %c60 = arith.constant 60 : index
  %read = memref.load %n[] : memref<i64>
  %extent = arith.index_cast %read : i64 to index
  %limit = arith.muli %extent, %c2 : index
  %runs = arith.cmpi slt, %b, %limit : index
  %other = arith.remui %b, %c60 : index
  %also = arith.cmpi slt, %other, %extent : index
  %both = arith.andi %runs, %also : i1
  scf.if %both {
    %x = memref.load %A[%b] : memref<64xf32>
    memref.store %x, %C[%b] : memref<64xf32>
  }
}

// CHECK:      func.func @first(%n: memref<i64>, %A: memref<64xf32>, %C: memref<64xf32>, %worker: index,
// CHECK:        [[MOST:%.*]] = arith.constant 64 : index
// CHECK:        [[READ:%.*]] = memref.load %n[] : memref<i64>
// CHECK:        [[EXTENT:%.*]] = arith.index_cast [[READ]] : i64 to index
// CHECK:        [[LIMIT:%.*]] = arith.muli [[EXTENT]], %{{.*}} : index
// CHECK:        [[LEAST:%.*]] = arith.minsi [[MOST]], [[LIMIT]] : index
// CHECK-NEXT:   %blocks = arith.maxsi [[LEAST]], %{{.*}} : index
// CHECK:        arith.muli %blocks, %worker : index
// CHECK:        scf.for %b = %first to %last
// CHECK:          scf.if

// -----

// Here other blocks do something, too; the limit depends on the block, or on what blocks store.
loop.func @all(%n: memref<1xi64>, %A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 64) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %read = memref.load %n[%c0] : memref<1xi64>
  %extent = arith.index_cast %read : i64 to index
  %runs = arith.cmpi slt, %b, %extent : index
  %x = memref.load %A[%b] : memref<64xf32>
  scf.if %runs {
    memref.store %x, %C[%b] : memref<64xf32>
  }
  memref.store %x, %C[%c0] : memref<64xf32>
}
loop.func @varies(%n: memref<64xi64>, %A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 64) threads(%t in 1) {
  %read = memref.load %n[%b] : memref<64xi64>
  %extent = arith.index_cast %read : i64 to index
  %runs = arith.cmpi slt, %b, %extent : index
  scf.if %runs {
    %x = memref.load %A[%b] : memref<64xf32>
    memref.store %x, %C[%b] : memref<64xf32>
  }
}
loop.func @stored(%n: memref<1xi64>, %A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 64) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %read = memref.load %n[%c0] : memref<1xi64>
  %extent = arith.index_cast %read : i64 to index
  %runs = arith.cmpi slt, %b, %extent : index
  scf.if %runs {
    memref.store %read, %n[%c0] : memref<1xi64>
  }
}

// CHECK:      func.func @all(
// CHECK-NOT:    %blocks
// CHECK:      func.func @varies(
// CHECK-NOT:    %blocks
// CHECK:      func.func @stored(
// CHECK-NOT:    %blocks
