// RUN: treadle-opt %s -p loop-delinearize | filecheck %s

// A loop that ends at an extent has no digits, since its end need not be a multiple of their product: it stays. One to
// the largest shape is split, and the predicate goes with it.
loop.func @rows(%n: memref<i64>, %A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c64 = arith.constant 64 : index
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 64 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  scf.for %p = %c0 to %extent step %c1 {
    %i = arith.divui %p, %c8 : index
    %j = arith.remui %p, %c8 : index
    %0 = arith.muli %j, %c8 : index
    %at = arith.addi %0, %i : index
    %v = loop.load %A[%at] : memref<64xf32>
    loop.store %v, %C[%p] : memref<64xf32>
  }
  scf.for %p = %c0 to %c64 step %c1 {
    %i = arith.divui %p, %c8 : index
    %j = arith.remui %p, %c8 : index
    %inside = arith.cmpi slt, %j, %extent : index
    %0 = arith.muli %j, %c8 : index
    %at = arith.addi %0, %i : index
    %v = loop.load %A[%at] : memref<64xf32>
    loop.store %v, %C[%p] where %inside : memref<64xf32>
  }
}

// CHECK:      scf.for %p = %c0 to %extent step %c1 {
// CHECK:      scf.for %p0 = %c0 to [[END:%\S+]] step %c1 {
// CHECK:        scf.for %p1 = %c0 to [[END]] step %c1 {
// CHECK:          [[INSIDE:%inside\S*]] = arith.cmpi slt, {{%\S+}}, %extent : index
// CHECK:          loop.store {{.*}} where [[INSIDE]]
