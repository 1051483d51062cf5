// RUN: treadle-opt %s -p "loop-split-register-tiles{target=avx512}" | filecheck %s
// RUN: treadle-opt %s -p 'loop-split-register-tiles{target="avx512{vector_registers=33}"}' | filecheck %s --check-prefix=ROOM

// 28 sums, 4 vectors of a panel and a broadcast element are more than 32 registers.
// CHECK-LABEL: @seven_by_four
// CHECK:       scf.for %k
// CHECK:         [[AGAIN:%.*]] = loop.opaque [[FIRST:%.*]]
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
// ROOM-NOT:    loop.opaque
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
// CHECK-NOT:     loop.opaque
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

// Tiles of 7 rows end where a row of 14 pixels does: their rows are 32 elements apart.
// CHECK-LABEL: @rows_of_windows_in_one_row_of_an_image
// CHECK:         [[AGAIN:%.*]] = loop.opaque
// CHECK:         scf.for %r = %c0 to %c7
// CHECK:           [[ROW:%.*]] = arith.muli %r, %c32
// CHECK:         scf.for [[R:%.*]] = %c0 to %c7
// CHECK:           [[ROW2:%.*]] = arith.muli [[R]], %c32
// CHECK:           arith.addi [[ROW2]], [[AGAIN]]
loop.func @rows_of_windows_in_one_row_of_an_image(%A: memref<8192xf32>, %B: memref<16384xf32>) grid(%b in 4) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c7 = arith.constant 7 : index
  %c16 = arith.constant 16 : index
  %c14 = arith.constant 14 : index
  %c32 = arith.constant 32 : index
  %c98 = arith.constant 98 : index
  %c512 = arith.constant 512 : index
  %acc = loop.alloc : memref<7x4xvector<16xf32>, #loop.space<register>>
  scf.for %m = %c0 to %c98 step %c7 {
    scf.for %k = %c0 to %c32 step %c1 {
      %line = arith.muli %k, %c4 : index
      scf.for %r = %c0 to %c7 step %c1 {
        %pixel = arith.addi %r, %m : index
        %of_image = arith.divui %pixel, %c14 : index
        %in_row = arith.remui %pixel, %c14 : index
        %row = arith.muli %of_image, %c512 : index
        %step = arith.muli %in_row, %c32 : index
        %place_in_row = arith.addi %row, %step : index
        %at = arith.addi %place_in_row, %k : index
        scf.for %n = %c0 to %c4 step %c1 {
          %a = loop.load %A[%at] : memref<8192xf32>
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
}

// A tile of a buffer of the kernel's own, by another name of the buffer; rows whose elements other rows read few terms
// later have both their indices hidden.
// CHECK-LABEL: @rows_of_the_kernels_own
// CHECK:       %tiles = loop.alloc
// CHECK:       [[FLAT:%.*]] = loop.opaque_buffer %tiles : memref<8x64xf32, #loop.space<register>> -> memref<512xf32, #loop.space<register>>
// CHECK:         [[ONCE:%.*]] = loop.opaque [[FIRST:%.*]]
// CHECK:         [[AGAIN:%.*]] = loop.opaque [[ONCE]]
// CHECK:           [[AT:%.*]] = arith.addi {{.*}}, [[ONCE]] : index
// CHECK:             loop.load [[FLAT]][[[AT]]]
// CHECK:           [[AT2:%.*]] = arith.addi {{.*}}, [[AGAIN]] : index
// CHECK:             loop.load [[FLAT]][[[AT2]]]
loop.func @rows_of_the_kernels_own(%B: memref<16384xf32>) grid(%b in 8) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c7 = arith.constant 7 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c2 = arith.constant 2 : index
  %tiles = loop.alloc : memref<8x64xf32, #loop.space<register>>
  %acc = loop.alloc : memref<7x4xvector<16xf32>, #loop.space<register>>
  scf.for %k = %c0 to %c32 step %c1 {
    %line = arith.muli %k, %c4 : index
    scf.for %r = %c0 to %c7 step %c1 {
      %row = arith.muli %r, %c2 : index
      %at = arith.addi %row, %k : index
      scf.for %n = %c0 to %c4 step %c1 {
        %a = loop.load %tiles[%b, %at] : memref<8x64xf32, #loop.space<register>>
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
