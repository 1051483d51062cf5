// RUN: treadle-opt %s -p task-lower | filecheck %s

// Tasks keep the predicate that an extent is part of; the loops are those of the largest shape.
loop.func @rows(%n: memref<i64>, %A: memref<8x8xf32>, %C: memref<8x8xf32>) grid(%b in 1) threads(%t in 4) {
  %zero = arith.constant 0.0 : f32
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 8 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  task.for (%i, %j) in #task.map<repeat(8, 2) * spatial(1, 4)>(%t) {
    %in = arith.cmpi slt, %i, %extent : index
    %x = loop.load %A[%i, %j] where %in else %zero : memref<8x8xf32>
    loop.store %x, %C[%i, %j] where %in : memref<8x8xf32>
  }
}

// CHECK:      scf.for %i = %c0 to %c8 step %c1 {
// CHECK:        %in = arith.cmpi slt, %i, %extent : index
// CHECK-NEXT:   %x = loop.load %A[%i, %j] where %in else %zero
// CHECK-NEXT:   loop.store %x, %C[%i, %j] where %in
