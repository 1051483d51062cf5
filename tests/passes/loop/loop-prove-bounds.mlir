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

// Below a minimum is below each of the two: lane - %k is at most 1, and %pair at most 78.
loop.func @below_a_minimum(%A: memref<80xf32>) grid(%b in 1) threads(%t in 40) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %z = arith.constant dense<0.0> : vector<4xf32>
  %pair = arith.muli %t, %c2 : index
  scf.for %k = %c0 to %c2 step %c1 {
    %at = arith.subi %pair, %k : index
    %after = arith.addi %k, %c2 : index
    %end = arith.minsi %c3, %after : index
    %mask = loop.lane_mask %k, %end : vector<4xi1>
    %a = vector.maskedload %A[%at], %mask, %z : memref<80xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
  }
}

// CHECK-LABEL: loop.func @below_a_minimum
// CHECK:         vector.maskedload

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
