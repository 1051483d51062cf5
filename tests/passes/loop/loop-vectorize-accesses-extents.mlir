// RUN: treadle-opt %s -p loop-vectorize-accesses | filecheck %s

// Rows below an extent: one load under one predicate. Columns below an extent are loaded one by one, since it need not
// be a multiple of four, and stored together.
loop.func @copy(%n: memref<i64>, %A: memref<256xf32>) grid(%b in 4) threads(%t in 4) {
  %tile = loop.alloc : memref<4x20xf32, #loop.space<shared>>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c16 = arith.constant 16 : index
  %zero = arith.constant 0.0 : f32
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 64 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  %0 = arith.muli %b, %c16 : index
  %1 = arith.muli %t, %c4 : index
  %2 = arith.addi %0, %1 : index
  %row = arith.cmpi slt, %t, %extent : index
  scf.for %j = %c0 to %c4 step %c1 {
    %i = arith.addi %2, %j : index
    %a = loop.load %A[%i] where %row else %zero : memref<256xf32>
    %column = arith.addi %1, %j : index
    loop.store %a, %tile[%t, %column] : memref<4x20xf32, #loop.space<shared>>
  }
  scf.for %j = %c0 to %c4 step %c1 {
    %i = arith.addi %2, %j : index
    %in = arith.cmpi slt, %i, %extent : index
    %a = loop.load %A[%i] where %in else %zero : memref<256xf32>
    %column = arith.addi %1, %j : index
    loop.store %a, %tile[%t, %column] : memref<4x20xf32, #loop.space<shared>>
  }
}

// CHECK:      %row = arith.cmpi slt, %t, %extent : index
// CHECK:      [[V:%\S+]] = scf.if %row -> (vector<4xf32>) {
// CHECK-NEXT:   vector.load %A
// CHECK:      vector.store [[V]], %tile
// CHECK:      scf.for %j = %c0 to %c4 step %c1 {
// CHECK:        %in = arith.cmpi slt, %i, %extent : index
// CHECK-NEXT:   %a = loop.load %A[%i] where %in else %zero : memref<256xf32>
// CHECK:        loop.store %a, %tile_vector[%j]
// CHECK:      vector.load %tile_vector
// CHECK:      vector.store {{.*}}, %tile
