// RUN: treadle-opt %s -p "loop-halve-tiles{target=avx512}" | filecheck %s
// RUN: treadle-opt %s -p 'loop-halve-tiles{target="avx512{vector_registers=33}"}' | filecheck %s --check-prefix=ROOM

// 28 sums, 4 vectors of a panel and a broadcast element are more than 32 registers.
// CHECK-LABEL: @seven_by_four
// CHECK:       scf.for %k
// CHECK:         [[AGAIN:%.*]] = loop.again [[FIRST:%.*]]
// CHECK:         scf.for %r = %c0 to %c7
// CHECK:           [[ROW:%.*]] = arith.muli %r
// CHECK:           [[AT:%.*]] = arith.addi [[ROW]], [[FIRST]] : index
// CHECK:           scf.for %n = %c0 to %c2 step %c1
// CHECK:             loop.load %A[[[AT]]] : memref<1792xf32>
// CHECK:           } {loop.unroll}
// CHECK:         scf.for [[R:%.*]] = %c0 to %c7
// CHECK:           [[ROW2:%.*]] = arith.muli [[R]]
// CHECK:           [[AT2:%.*]] = arith.addi [[ROW2]], [[AGAIN]] : index
// CHECK:           scf.for %{{.*}} = %c2 to %c4 step %c1
// CHECK:             loop.load %A[[[AT2]]] : memref<1792xf32>
// CHECK:           } {loop.unroll}
// ROOM-NOT:    loop.again
loop.func @seven_by_four(%A: memref<1792xf32>, %B: memref<16384xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c7 = arith.constant 7 : index
  %c16 = arith.constant 16 : index
  %c256 = arith.constant 256 : index
  %acc = loop.alloc : memref<7x4xvector<16xf32>, #loop.space<register>>
  scf.for %k = %c0 to %c256 step %c1 {
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

// Rows of windows that go on in the next row of an image are no constant distance apart.
// CHECK-LABEL: @rows_of_windows
// CHECK-NOT:     loop.again
loop.func @rows_of_windows(%A: memref<4096xf32>, %B: memref<16384xf32>) grid(%b in 4) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c5 = arith.constant 5 : index
  %c7 = arith.constant 7 : index
  %c16 = arith.constant 16 : index
  %c256 = arith.constant 256 : index
  %acc = loop.alloc : memref<7x4xvector<16xf32>, #loop.space<register>>
  scf.for %k = %c0 to %c256 step %c1 {
    %line = arith.muli %k, %c4 : index
    scf.for %r = %c0 to %c7 step %c1 {
      %pixel = arith.addi %r, %b : index
      %of_image = arith.divui %pixel, %c5 : index
      %row = arith.muli %of_image, %c256 : index
      %at = arith.addi %row, %k : index
      scf.for %n = %c0 to %c4 step %c1 {
        %a = loop.load %A[%at] : memref<4096xf32>
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
