// RUN: treadle-opt %s -p loop-to-upstream --split-input-file --verify-diagnostics | filecheck %s

// CHECK: 'loop.lane_convert' from f32 to i8 has no form in MLIR's dialects; accepted: operations of builtin, func, arith,
func.func @k(%A: memref<8xf32>, %i: index) {
  %x = vector.load %A[%i] : memref<8xf32>, vector<8xf32>
  %y = loop.lane_convert %x : vector<8xf32> to vector<8xi8>
  func.return
}

// -----

// CHECK: 'loop.lane_lookup' has no form in MLIR's dialects
func.func @k(%A: memref<8xi32>, %i: index) {
  %x = vector.load %A[%i] : memref<8xi32>, vector<8xi32>
  %y = loop.lane_lookup %x in [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0] : vector<8xi32> to vector<8xf32>
  func.return
}

// -----

// CHECK: 'arith.addi' of integers without a sign has no form in MLIR's dialects
func.func @k(%A: memref<8xui8>, %i: index) {
  %x = memref.load %A[%i] : memref<8xui8>
  %y = arith.addi %x, %x : ui8
  func.return
}
