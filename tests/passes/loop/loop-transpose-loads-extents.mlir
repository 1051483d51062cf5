// RUN: treadle-opt %s -p loop-transpose-loads | filecheck %s

// The extent decides which lanes are on, and how far rows of the result lie apart; a loop that ends at it stays.
loop.func @lengths(%B: memref<1024xf32>, %Y: memref<1024xf32>, %length: memref<i64>)
    grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  %zero = arith.constant dense<0.0> : vector<16xf32>
  %n = loop.load %length[] : memref<i64>
  %end = arith.index_cast %n : i64 to index
  %on = loop.lane_mask %c0, %end : vector<16xi1>
  scf.for %k = %c0 to %c16 step %c1 {
    %at = arith.muli %k, %c16 : index
    %v = loop.strided_load %B[%k] by 64 where %on else %zero : memref<1024xf32>, vector<16xf32>
    vector.store %v, %Y[%at] : memref<1024xf32>, vector<16xf32>
  }
  scf.for %k = %c0 to %end step %c1 {
    %at = arith.muli %k, %c16 : index
    %v = loop.strided_load %B[%k] by 64 : memref<1024xf32>, vector<16xf32>
    vector.store %v, %Y[%at] : memref<1024xf32>, vector<16xf32>
  }
}

// CHECK-LABEL: loop.func @lengths
// CHECK:         scf.for %row
// CHECK:           %[[ON:.*]] = arith.cmpi slt, %row, %end : index
// CHECK:         loop.transpose
// CHECK:         scf.for %{{.*}} = %c0 to %end
// CHECK:           loop.strided_load
