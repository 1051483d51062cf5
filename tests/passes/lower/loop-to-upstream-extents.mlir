// RUN: treadle-opt %s -p loop-to-upstream --print-op-generic | filecheck %s

func.func @k(%A: memref<64xf32>, %C: memref<64xf32>, %n: memref<i64>, %worker: index, %workers: index) {
  %zero = arith.constant dense<0.0> : vector<8xf32>
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %0 = memref.load %n[] : memref<i64>
  %rows = arith.index_cast %0 : i64 to index
  scf.for %i = %c0 to %rows step %c8 {
    %left = arith.subi %rows, %i : index
    %m = loop.lane_mask %c0, %left : vector<8xi1>
    %x = vector.maskedload %A[%i], %m, %zero : memref<64xf32>, vector<8xi1>, vector<8xf32> into vector<8xf32>
    vector.maskedstore %C[%i], %m, %x : memref<64xf32>, vector<8xi1>, vector<8xf32>
    scf.yield
  }
  func.return
}

// The extent of a call is where the loop and the last mask end.
// CHECK:      %[[N:.*]] = "memref.load"(%n)
// CHECK-NEXT: %rows = "arith.index_cast"(%[[N]])
// CHECK-NEXT: "scf.for"(%c0, %rows, %c8)
// CHECK:      %left = "arith.subi"(%rows, %i)
// CHECK-NEXT: %m = "vector.create_mask"(%left)
// CHECK-NEXT: %x = "vector.maskedload"(%A, %i, %m, %zero)
