// RUN: treadle-opt %s -p loop-prove-bounds | filecheck %s

// Proved, and left as it is: by ranges, by a predicate, by a branch, by a loop that ends where the tensor does, by a
// clamp, and by a mask of lanes.
loop.func @proved(%A: memref<100xf32>, %ids: memref<8xi64>, %C: memref<100xf32>) grid(%b in 4) threads(%t in 32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %c32 = arith.constant 32 : index
  %c99 = arith.constant 99 : index
  %c100 = arith.constant 100 : index
  %zero = arith.constant 0.0 : f32
  %base = arith.muli %b, %c32 : index
  %i = arith.addi %base, %t : index
  %inside = arith.cmpi slt, %i, %c100 : index
  %0 = loop.load %A[%t] : memref<100xf32>
  %1 = loop.load %A[%i] where %inside else %zero : memref<100xf32>
  scf.if %inside {
    loop.store %1, %C[%i] : memref<100xf32>
  }
  %group = arith.divui %t, %c8 : index
  %first = arith.cmpi slt, %group, %c1 : index
  scf.if %first {
    %n = loop.load %ids[%t] : memref<8xi64>
    %j = arith.index_cast %n : i64 to index
    %low = arith.maxsi %j, %c0 : index
    %clamped = arith.minsi %low, %c99 : index
    %2 = loop.load %A[%clamped] : memref<100xf32>
  }
  %rest = arith.subi %c100, %base : index
  %end = arith.minsi %rest, %c32 : index
  scf.for %k = %c0 to %end step %c1 {
    %at = arith.addi %base, %k : index
    %3 = loop.load %A[%at] : memref<100xf32>
  }
  scf.for %k = %c0 to %c100 step %c8 {
    %left = arith.subi %c100, %k : index
    %mask = loop.lane_mask %c0, %left : vector<8xi1>
    %z = arith.constant dense<0.0> : vector<8xf32>
    %4 = vector.maskedload %A[%k], %mask, %z : memref<100xf32>, vector<8xi1>, vector<8xf32> into vector<8xf32>
  }
}

// CHECK-LABEL: loop.func @proved
// CHECK:         loop.load %A[%i] where %inside else %zero : memref<100xf32>

// Below a minimum is below each of the two. A transposed convolution of 5x2 pixels; a row of 2 is read at once: of
// lanes below %k + 2 the furthest is 1 behind %pair, below 3 alone it would be 2.
loop.func @below_a_minimum(%A: memref<80xf32>) grid(%block in 8) threads(%t in 4) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %c5 = arith.constant 5 : index
  %c10 = arith.constant 10 : index
  %c15 = arith.constant 15 : index
  %c20 = arith.constant 20 : index
  %c30 = arith.constant 30 : index
  %z = arith.constant dense<0.0> : vector<16xf32>
  %base = arith.muli %block, %c4 : index
  %row = arith.addi %t, %base : index
  %some = arith.cmpi slt, %row, %c30 : index
  scf.if %some {
    %image = arith.divui %row, %c15 : index
    %first = arith.muli %image, %c20 : index
    %rest = arith.remui %row, %c15 : index
    %pixel = arith.addi %first, %rest : index
    %fives = arith.divui %row, %c5 : index
    %line = arith.remui %fives, %c3 : index
    scf.for %channel = %c0 to %c2 step %c1 {
      %plane = arith.muli %channel, %c10 : index
      %p = arith.addi %plane, %pixel : index
      scf.for %l = %c0 to %c2 step %c1 {
        %skipped = arith.muli %l, %c5 : index
        %q = arith.subi %p, %skipped : index
        %pair = arith.muli %q, %c2 : index
        %source = arith.subi %line, %l : index
        %low = arith.cmpi sge, %source, %c0 : index
        %high = arith.cmpi slt, %source, %c2 : index
        %inside = arith.andi %low, %high : i1
        scf.for %k = %c0 to %c2 step %c1 {
          %at = arith.subi %pair, %k : index
          %after = arith.addi %k, %c2 : index
          %least = arith.minsi %c3, %after : index
          %end = arith.select %inside, %least, %c0 : index
          %mask = loop.lane_mask %k, %end : vector<16xi1>
          %a = vector.maskedload %A[%at], %mask, %z : memref<80xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
        }
      }
    }
  }
}

// CHECK-LABEL: loop.func @below_a_minimum
// CHECK:         vector.maskedload

// Digits of %lane and of a sum share the light terms of the index, which only the predicate bounds: lane / 8 + 8 * line
// is at most 36.
loop.func @light_digits(%A: memref<2368xf32>) grid(%block in 5) threads(%thread in 2) {
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c5 = arith.constant 5 : index
  %c8 = arith.constant 8 : index
  %c64 = arith.constant 64 : index
  %c74 = arith.constant 74 : index
  %c296 = arith.constant 296 : index
  %c592 = arith.constant 592 : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %base = arith.muli %block, %c2 : index
  %row = arith.addi %thread, %base : index
  %line = arith.remui %row, %c5 : index
  %image = arith.divui %row, %c5 : index
  %lines = arith.muli %image, %c74 : index
  %start = arith.addi %line, %lines : index
  %eighth = arith.muli %start, %c8 : index
  scf.for %k = %c0 to %c4 step %c1 {
    %c37 = arith.constant 37 : index
    %plane = arith.muli %k, %c37 : index
    %sum = arith.addi %plane, %eighth : index
    %pairs = arith.muli %sum, %c2 : index
    scf.for %lane = %c0 to %c64 step %c1 {
      %before = arith.muli %line, %c64 : index
      %column = arith.addi %lane, %before : index
      %inside = arith.cmpi slt, %column, %c296 : index
      %d4 = arith.divui %lane, %c4 : index
      %m4 = arith.remui %d4, %c2 : index
      %t4 = arith.muli %m4, %c592 : index
      %m1 = arith.remui %lane, %c2 : index
      %t1 = arith.muli %m1, %c296 : index
      %d8 = arith.divui %lane, %c8 : index
      %t8 = arith.muli %d8, %c2 : index
      %d2 = arith.divui %lane, %c2 : index
      %m2 = arith.remui %d2, %c2 : index
      %0 = arith.addi %t4, %t1 : index
      %1 = arith.addi %0, %t8 : index
      %2 = arith.addi %1, %m2 : index
      %3 = arith.addi %2, %pairs : index
      %4 = loop.load %A[%3] where %inside else %zero : memref<2368xf32>
    }
  }
}

// CHECK-LABEL: loop.func @light_digits
// CHECK:         loop.load

// The index is data; whoever wrote the kernel answers for it.
loop.func @explained(%A: memref<100xf32>, %ids: memref<8xi64>, %C: memref<8xf32>) grid(%b in 1) threads(%t in 8) {
  %n = loop.load %ids[%t] : memref<8xi64>
  %j = arith.index_cast %n : i64 to index
  %a = loop.load %A[%j] {unproved = "the caller checked the ids"} : memref<100xf32>
  loop.store %a, %C[%t] {unproved = "also read back"} : memref<8xf32>
}

// CHECK-LABEL: loop.func @explained
// CHECK:         loop.load %A[%j] {unproved = "the caller checked the ids"} : memref<100xf32>
// CHECK-NEXT:    loop.store %a, %C[%t] {unproved = "also read back"} : memref<8xf32>
