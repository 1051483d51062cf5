// RUN: treadle-opt %s -p "loop-split-register-tiles{target=avx512}" | filecheck %s

// As many terms as a call has: the tile is the same.
// CHECK-LABEL: @a_part_of_the_terms
// CHECK:       scf.for %k = %c0 to %end
// CHECK:         loop.opaque
// CHECK:         scf.for %r
// CHECK:         scf.for %{{.*}} = %c0 to %c7
loop.func @a_part_of_the_terms(%extent: memref<i64>, %A: memref<1792xf32>, %B: memref<16384xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c7 = arith.constant 7 : index
  %c16 = arith.constant 16 : index
  %c256 = arith.constant 256 : index
  %acc = loop.alloc : memref<7x4xvector<16xf32>, #loop.space<register>>
  %terms = loop.load %extent[] : memref<i64>
  %end = arith.index_cast %terms : i64 to index
  scf.for %k = %c0 to %end step %c1 {
    %line = arith.muli %k, %c4 : index
    scf.for %r = %c0 to %c7 step %c1 {
      %row = arith.muli %r, %c256 : index
      %at = arith.addi %row, %k : index
      scf.for %n = %c0 to %c4 step %c1 {
        %a = loop.load %A[%at] : memref<1792xf32>
        %place = arith.addi %line, %n : index
        %from = arith.muli %place, %c16 : index
        %y = vector.load %B[%from] : memref<16384xf32>, vector<16xf32>
        %x = vector.broadcast %a : f32 to vector<16xf32>
        %xy = arith.mulf %x, %y : vector<16xf32>
        %sum = memref.load %acc[%r, %n] : memref<7x4xvector<16xf32>, #loop.space<register>>
        %next = arith.addf %sum, %xy : vector<16xf32>
        memref.store %next, %acc[%r, %n] : memref<7x4xvector<16xf32>, #loop.space<register>>
      } {loop.unroll}
    } {loop.unroll}
  }
}
