// RUN: treadle-opt %s -p "loop-lookup-tables{target=avx512}" | filecheck %s
// RUN: treadle-opt %s -p "loop-lookup-tables{target=avx2}" | filecheck %s --check-prefix NARROW

// Numbers of four bits, less eight and as they are. Three bits, and what is converted without a mask, stay.
// CHECK-LABEL: @four_bits
// CHECK:       %x = loop.lane_convert
// CHECK-NEXT:  %y = loop.lane_lookup %x in [-8.000000e+00, -7.000000e+00, {{.*}}, 7.000000e+00]
// CHECK:       %w = loop.lane_lookup %x in [0.000000e+00, {{.*}}, 1.500000e+01]
// CHECK:       arith.andi %x
// CHECK-NEXT:  loop.lane_convert
// CHECK:       loop.lane_convert %x
// CHECK-NOT:   loop.lane_lookup
// NARROW-NOT:  loop.lane_lookup
loop.func @four_bits(%A: memref<64xui8>, %B: memref<64xf32>) grid(%g in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c48 = arith.constant 48 : index
  %7 = arith.constant 7 : i32
  %8 = arith.constant 8 : i32
  %15 = arith.constant 15 : i32
  %seven = vector.broadcast %7 : i32 to vector<16xi32>
  %eight = vector.broadcast %8 : i32 to vector<16xi32>
  %fifteen = vector.broadcast %15 : i32 to vector<16xi32>
  %bytes = vector.load %A[%c0] : memref<64xui8>, vector<16xui8>
  %x = loop.lane_convert %bytes : vector<16xui8> to vector<16xi32>
  %low = arith.andi %x, %fifteen : vector<16xi32>
  %less = arith.subi %low, %eight : vector<16xi32>
  %y = loop.lane_convert %less : vector<16xi32> to vector<16xf32>
  vector.store %y, %B[%c0] : memref<64xf32>, vector<16xf32>
  %w = loop.lane_convert %low : vector<16xi32> to vector<16xf32>
  vector.store %w, %B[%c16] : memref<64xf32>, vector<16xf32>
  %three = arith.andi %x, %seven : vector<16xi32>
  %v = loop.lane_convert %three : vector<16xi32> to vector<16xf32>
  vector.store %v, %B[%c32] : memref<64xf32>, vector<16xf32>
  %u = loop.lane_convert %x : vector<16xi32> to vector<16xf32>
  vector.store %u, %B[%c48] : memref<64xf32>, vector<16xf32>
}
