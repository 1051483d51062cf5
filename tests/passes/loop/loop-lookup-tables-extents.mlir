// RUN: treadle-opt %s -p "loop-lookup-tables{target=avx512}" | filecheck %s

// As many vectors as a call has: the table is the same. What is subtracted is a constant, not an extent.
// CHECK-LABEL: @a_part_of_the_vectors
// CHECK:       scf.for %i = %c0 to %end
// CHECK:         loop.lane_lookup %x
// CHECK:         arith.subi
// CHECK-NEXT:    loop.lane_convert
loop.func @a_part_of_the_vectors(%extent: memref<i64>, %A: memref<64xui8>, %B: memref<64xf32>, %C: memref<64xf32>) grid(%g in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %15 = arith.constant 15 : i32
  %fifteen = vector.broadcast %15 : i32 to vector<16xi32>
  %given = loop.load %extent[] : memref<i64>
  %end = arith.index_cast %given : i64 to index
  %number = arith.trunci %given : i64 to i32
  %numbers = vector.broadcast %number : i32 to vector<16xi32>
  scf.for %i = %c0 to %end step %c16 {
    %bytes = vector.load %A[%i] : memref<64xui8>, vector<16xui8>
    %x = loop.lane_convert %bytes : vector<16xui8> to vector<16xi32>
    %low = arith.andi %x, %fifteen : vector<16xi32>
    %y = loop.lane_convert %low : vector<16xi32> to vector<16xf32>
    vector.store %y, %B[%i] : memref<64xf32>, vector<16xf32>
    %less = arith.subi %low, %numbers : vector<16xi32>
    %w = loop.lane_convert %less : vector<16xi32> to vector<16xf32>
    vector.store %w, %C[%i] : memref<64xf32>, vector<16xf32>
  }
}
