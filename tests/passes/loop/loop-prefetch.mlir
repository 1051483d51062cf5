// RUN: treadle-opt %s -p loop-prefetch | filecheck %s
// RUN: treadle-opt %s -p "loop-prefetch{arithmetic=17}" | filecheck %s --check-prefix=LESS

// An iteration multiplies 8 rows by one line of %B: 4 cycles, so that the line of 32 iterations later is asked for. Rows
// of %A have 2 KiB, of which iterations read on in the same line; %B has 8 MiB, and rows a page apart.
// CHECK-LABEL: @product
// CHECK:       scf.for %k
// CHECK:         loop.prefetch %B at %{{.*}} : memref<2097152xf32>
// CHECK-NOT:     loop.prefetch
// CHECK:         scf.for %r
// LESS-NOT:    loop.prefetch
loop.func @product(%A: memref<4096xf32>, %B: memref<2097152xf32>) grid(%b in 256) threads(%t in 1) {
  %acc = loop.alloc : memref<8xvector<16xf32>, #loop.space<register>>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c512 = arith.constant 512 : index
  %c4096 = arith.constant 4096 : index
  %first = arith.muli %b, %c16 : index
  scf.for %k = %c0 to %c512 step %c1 {
    %row = arith.muli %k, %c4096 : index
    %at = arith.addi %row, %first : index
    scf.for %r = %c0 to %c8 step %c1 {
      %line = arith.muli %r, %c512 : index
      %i = arith.addi %line, %k : index
      %a = loop.load %A[%i] : memref<4096xf32>
      %x = vector.broadcast %a : f32 to vector<16xf32>
      %y = vector.load %B[%at] : memref<2097152xf32>, vector<16xf32>
      %xy = arith.mulf %x, %y : vector<16xf32>
      %sum = loop.load %acc[%r] : memref<8xvector<16xf32>, #loop.space<register>>
      %next = arith.addf %sum, %xy : vector<16xf32>
      loop.store %next, %acc[%r] : memref<8xvector<16xf32>, #loop.space<register>>
    } {loop.unroll}
  }
}

// With one row there is less than an operation for each line and cycle: the processor fetches by itself.
// CHECK-LABEL: @one_row
// CHECK-NOT:     loop.prefetch
loop.func @one_row(%B: memref<2097152xf32>, %C: memref<16xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c512 = arith.constant 512 : index
  %c4096 = arith.constant 4096 : index
  scf.for %k = %c0 to %c512 step %c1 {
    %at = arith.muli %k, %c4096 : index
    %y = vector.load %B[%at] : memref<2097152xf32>, vector<16xf32>
    %sum = vector.load %C[%c0] : memref<16xf32>, vector<16xf32>
    %next = arith.addf %sum, %y : vector<16xf32>
    vector.store %next, %C[%c0] : memref<16xf32>, vector<16xf32>
  }
}

// Of 256 lines that every iteration of %m reads again, none: 16 KiB stay in the first cache.
// CHECK-LABEL: @again
// CHECK-NOT:     loop.prefetch
loop.func @again(%B: memref<2097152xf32>, %C: memref<64xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c16 = arith.constant 16 : index
  %c256 = arith.constant 256 : index
  %c4096 = arith.constant 4096 : index
  scf.for %m = %c0 to %c256 step %c1 {
    scf.for %k = %c0 to %c256 step %c1 {
      %at = arith.muli %k, %c4096 : index
      scf.for %r = %c0 to %c4 step %c1 {
        %y = vector.load %B[%at] : memref<2097152xf32>, vector<16xf32>
        %i = arith.muli %r, %c16 : index
        %sum = vector.load %C[%i] : memref<64xf32>, vector<16xf32>
        %next = arith.addf %sum, %y : vector<16xf32>
        vector.store %next, %C[%i] : memref<64xf32>, vector<16xf32>
      } {loop.unroll}
    }
  }
}

// The innermost loop ends before the lines that are asked for; the loop around it goes on with the next ones.
// CHECK-LABEL: @goes_on
// CHECK:       scf.for %k1
// CHECK:         loop.prefetch %B at %{{.*}} : memref<2097152xf32>
// CHECK:         loop.prefetch %B at %{{.*}} : memref<2097152xf32>
// CHECK-NOT:     loop.prefetch
loop.func @goes_on(%B: memref<2097152xf32>, %C: memref<256xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c512 = arith.constant 512 : index
  scf.for %k0 = %c0 to %c512 step %c1 {
    %taps = arith.muli %k0, %c3 : index
    scf.for %k1 = %c0 to %c3 step %c1 {
      %tap = arith.addi %taps, %k1 : index
      %first = arith.muli %tap, %c32 : index
      scf.for %v = %c0 to %c2 step %c1 {
        %lane = arith.muli %v, %c16 : index
        %at = arith.addi %first, %lane : index
        scf.for %r = %c0 to %c8 step %c1 {
          %y = vector.load %B[%at] : memref<2097152xf32>, vector<16xf32>
          %i = arith.muli %r, %c16 : index
          %sum = vector.load %C[%i] : memref<256xf32>, vector<16xf32>
          %next = arith.addf %sum, %y : vector<16xf32>
          vector.store %next, %C[%i] : memref<256xf32>, vector<16xf32>
        } {loop.unroll}
      } {loop.unroll}
    }
  }
}

// Panels of 32 rows of two lines that the three iterations of %m read: each fetches, line by line, a third of the next
// block's.
// CHECK-LABEL: @panels
// CHECK:       scf.for %m
// CHECK:         %[[READING:.+]] = arith.divui %m, %c8
// CHECK:         scf.for %k
// CHECK:           %[[ITERATION:.+]] = arith.addi %k,
// CHECK:           %[[LINES:.+]] = arith.muli %[[ITERATION]], %{{.*}} : index
// CHECK:           arith.divui %[[LINES]], %c3
// CHECK:           loop.prefetch %B at %{{.*}} : memref<16384xf32>
// CHECK-NOT:       loop.prefetch
// CHECK:           scf.for %r
loop.func @panels(%B: memref<16384xf32>, %C: memref<256xf32>) grid(%b in 16) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c1024 = arith.constant 1024 : index
  %end = arith.constant 24 : index
  %panel = arith.muli %b, %c1024 : index
  scf.for %m = %c0 to %end step %c8 {
    scf.for %k = %c0 to %c32 step %c1 {
      %line = arith.muli %k, %c32 : index
      %row = arith.addi %panel, %line : index
      scf.for %v = %c0 to %c2 step %c1 {
        %lane = arith.muli %v, %c16 : index
        %at = arith.addi %row, %lane : index
        scf.for %r = %c0 to %c8 step %c1 {
          %y = vector.load %B[%at] : memref<16384xf32>, vector<16xf32>
          %i = arith.muli %r, %c16 : index
          %sum = vector.load %C[%i] : memref<256xf32>, vector<16xf32>
          %next = arith.addf %sum, %y : vector<16xf32>
          vector.store %next, %C[%i] : memref<256xf32>, vector<16xf32>
        } {loop.unroll}
      } {loop.unroll}
    }
  }
}

// Rows of two lines with gaps between them that both iterations of %m read: each fetches one line of each row of the next
// block's.
// CHECK-LABEL: @gaps
// CHECK:       scf.for %m
// CHECK-DAG:     %[[NUMBER:.+]] = arith.divui %m, %{{.*}} : index
// CHECK-NOT:     arith.select
// CHECK:         scf.for %k
// CHECK:           loop.prefetch %B at %{{.*}} : memref<32768xf32>
// CHECK-NOT:       loop.prefetch
// CHECK:           scf.for %r
loop.func @gaps(%B: memref<32768xf32>, %C: memref<256xf32>) grid(%b in 16) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %c2048 = arith.constant 2048 : index
  %end = arith.constant 16 : index
  %panel = arith.muli %b, %c2048 : index
  scf.for %m = %c0 to %end step %c8 {
    scf.for %k = %c0 to %c32 step %c1 {
      %line = arith.muli %k, %c64 : index
      %row = arith.addi %panel, %line : index
      scf.for %v = %c0 to %c2 step %c1 {
        %lane = arith.muli %v, %c16 : index
        %at = arith.addi %row, %lane : index
        scf.for %r = %c0 to %c8 step %c1 {
          %y = vector.load %B[%at] : memref<32768xf32>, vector<16xf32>
          %i = arith.muli %r, %c16 : index
          %sum = vector.load %C[%i] : memref<256xf32>, vector<16xf32>
          %next = arith.addf %sum, %y : vector<16xf32>
          vector.store %next, %C[%i] : memref<256xf32>, vector<16xf32>
        } {loop.unroll}
      } {loop.unroll}
    }
  }
}

// With three readings the third has no line left.
// CHECK-LABEL: @gaps_and_more_readings
// CHECK:       scf.for %m
// CHECK:         arith.cmpi slt
// CHECK:         arith.select
// CHECK:         scf.for %k
// CHECK:           loop.prefetch %B at %{{.*}} : memref<32768xf32>
// CHECK-NOT:       loop.prefetch
// CHECK:           scf.for %r
loop.func @gaps_and_more_readings(%B: memref<32768xf32>, %C: memref<256xf32>) grid(%b in 16) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %c2048 = arith.constant 2048 : index
  %end = arith.constant 24 : index
  %panel = arith.muli %b, %c2048 : index
  scf.for %m = %c0 to %end step %c8 {
    scf.for %k = %c0 to %c32 step %c1 {
      %line = arith.muli %k, %c64 : index
      %row = arith.addi %panel, %line : index
      scf.for %v = %c0 to %c2 step %c1 {
        %lane = arith.muli %v, %c16 : index
        %at = arith.addi %row, %lane : index
        scf.for %r = %c0 to %c8 step %c1 {
          %y = vector.load %B[%at] : memref<32768xf32>, vector<16xf32>
          %i = arith.muli %r, %c16 : index
          %sum = vector.load %C[%i] : memref<256xf32>, vector<16xf32>
          %next = arith.addf %sum, %y : vector<16xf32>
          vector.store %next, %C[%i] : memref<256xf32>, vector<16xf32>
        } {loop.unroll}
      } {loop.unroll}
    }
  }
}

// Blocks of 16 channels of 7 pixels, which are a line each: at a block of channels, those of the next 7 pixels.
// CHECK-LABEL: @blocks_of_channels
// CHECK:       scf.for %m
// CHECK:         scf.for %c
// CHECK-COUNT-7:   loop.prefetch %A at %{{.*}} : memref<200704xf32>
// CHECK-NOT:       loop.prefetch
// CHECK:           scf.for %k
loop.func @blocks_of_channels(%A: memref<200704xf32>, %C: memref<256xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c7 = arith.constant 7 : index
  %c16 = arith.constant 16 : index
  %c64 = arith.constant 64 : index
  %c196 = arith.constant 196 : index
  %c3136 = arith.constant 3136 : index
  scf.for %m = %c0 to %c196 step %c7 {
    scf.for %c = %c0 to %c64 step %c1 {
      %plane = arith.muli %c, %c3136 : index
      scf.for %k = %c0 to %c16 step %c1 {
        scf.for %r = %c0 to %c7 step %c1 {
          %pixel = arith.addi %m, %r : index
          %first = arith.muli %pixel, %c16 : index
          %lane = arith.addi %first, %k : index
          %at = arith.addi %plane, %lane : index
          %a = loop.load %A[%at] : memref<200704xf32>
          %x = vector.broadcast %a : f32 to vector<16xf32>
          %i = arith.muli %r, %c16 : index
          %sum = vector.load %C[%i] : memref<256xf32>, vector<16xf32>
          %next = arith.addf %sum, %x : vector<16xf32>
          vector.store %next, %C[%i] : memref<256xf32>, vector<16xf32>
        } {loop.unroll}
      }
    }
  }
}

// Panels begin in the middle of a row of 16 terms: no distance leads from every term to that of the next panel.
// CHECK-LABEL: @no_distance
// CHECK-NOT:     loop.prefetch
loop.func @no_distance(%B: memref<65536xf32>, %C: memref<256xf32>) grid(%b in 16) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c24 = arith.constant 24 : index
  %c1024 = arith.constant 1024 : index
  %first = arith.muli %b, %c24 : index
  scf.for %m = %c0 to %c24 step %c8 {
    scf.for %k = %c0 to %c24 step %c1 {
      %term = arith.addi %first, %k : index
      %row = arith.divui %term, %c16 : index
      %lane = arith.remui %term, %c16 : index
      %line = arith.muli %row, %c1024 : index
      %column = arith.muli %lane, %c16 : index
      %at = arith.addi %line, %column : index
      scf.for %r = %c0 to %c8 step %c1 {
        %y = vector.load %B[%at] : memref<65536xf32>, vector<16xf32>
        %i = arith.muli %r, %c16 : index
        %sum = vector.load %C[%i] : memref<256xf32>, vector<16xf32>
        %next = arith.addf %sum, %y : vector<16xf32>
        vector.store %next, %C[%i] : memref<256xf32>, vector<16xf32>
      } {loop.unroll}
    }
  }
}

// Panels as above that only the call knows how often it reads: a line is the number of the iteration times the lines of
// an iteration, with 16 bits behind the point. Where the panel is read once, what the loop reads soon is fetched.
// CHECK-LABEL: @readings_of_a_call
// CHECK:       %end = arith.minsi
// CHECK:       [[LEAST:%.*]] = arith.maxsi %end, %{{.*}} : index
// CHECK:       [[UP:%.*]] = arith.addi [[LEAST]], %{{.*}} : index
// CHECK:       [[READINGS:%.*]] = arith.divui [[UP]], %{{.*}} : index
// CHECK:       [[SUM:%.*]] = arith.addi [[READINGS]], %{{.*}} : index
// CHECK:       [[OF_CALL:%.*]] = arith.divui [[SUM]], [[READINGS]] : index
// CHECK:       [[ONCE:%.*]] = arith.cmpi sge, [[OF_CALL]], %{{.*}} : index
// CHECK:       [[AWAY:%.*]] = arith.select [[ONCE]], %{{.*}}, %{{.*}} : index
// CHECK:       scf.for %m
// CHECK:         scf.for %k
// CHECK:           arith.muli %k, [[OF_CALL]] : index
// CHECK:           arith.divui
// CHECK-COUNT-2:   loop.prefetch %B at %{{.*}} : memref<16384xf32>
// CHECK-NOT:       loop.prefetch
// CHECK:           scf.for %r
loop.func @readings_of_a_call(%n: memref<i64>, %B: memref<16384xf32>, %C: memref<256xf32>)
    grid(%b in 16) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %c1024 = arith.constant 1024 : index
  %read = loop.load %n[] : memref<i64>
  %rows = arith.index_cast %read : i64 to index
  %end = arith.minsi %rows, %c64 : index
  %panel = arith.muli %b, %c1024 : index
  scf.for %m = %c0 to %end step %c8 {
    scf.for %k = %c0 to %c32 step %c1 {
      %line = arith.muli %k, %c32 : index
      %row = arith.addi %panel, %line : index
      scf.for %v = %c0 to %c2 step %c1 {
        %lane = arith.muli %v, %c16 : index
        %at = arith.addi %row, %lane : index
        scf.for %r = %c0 to %c8 step %c1 {
          %y = vector.load %B[%at] : memref<16384xf32>, vector<16xf32>
          %i = arith.muli %r, %c16 : index
          %sum = vector.load %C[%i] : memref<256xf32>, vector<16xf32>
          %next = arith.addf %sum, %y : vector<16xf32>
          vector.store %next, %C[%i] : memref<256xf32>, vector<16xf32>
        } {loop.unroll}
      } {loop.unroll}
    }
  }
}
