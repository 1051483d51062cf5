// RUN: treadle-opt %s -p loop-pack-accesses,loop-simplify-index | filecheck %s

// 8 elements of 16 bits move together, where all of them are inside or none.
loop.func @scale(%A: memref<4096xf16>, %C: memref<4096xf16>) grid(%b in 4) threads(%t in 32) {
  %two = arith.constant 2.0 : f16
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c200 = arith.constant 200 : index
  %first = arith.muli %t, %c8 : index
  scf.for %e = %c0 to %c8 step %c1 {
    %at = arith.addi %first, %e : index
    %in = arith.cmpi slt, %at, %c200 : index
    %v = loop.load %A[%at] : memref<4096xf16>
    %w = arith.mulf %v, %two : f16
    loop.store %w, %C[%at] where %in : memref<4096xf16>
  } {loop.vector, loop.unroll}
}

// CHECK-LABEL: @scale
// CHECK:         %a_values = loop.alloc : memref<8xf16, #loop.space<register>>
// CHECK:         [[IN:%\d+]] = vector.load %A[%{{.*}}] : memref<4096xf16>, vector<8xf16>
// CHECK:         vector.store [[IN]], %a_values[%c0]
// CHECK:         %c_values = loop.alloc : memref<8xf16, #loop.space<register>>
// CHECK:         scf.for %e
// CHECK:           %v = loop.load %a_values[%e]
// CHECK:           loop.store %w, %c_values[%e]
// CHECK:         scf.if %{{.*}} {
// CHECK-NEXT:      [[OUT:%\d+]] = vector.load %c_values[%c0]
// CHECK-NEXT:      vector.store [[OUT]], %C[%{{.*}}] : memref<4096xf16>, vector<8xf16>

// Guarded loads give zeros in registers; 4 single floats are 16 bytes.
loop.func @guarded(%A: memref<4096xf32>, %C: memref<4096xf32>) grid(%b in 4) threads(%t in 32) {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %in = arith.cmpi slt, %t, %c4 : index
  %first = arith.muli %t, %c4 : index
  scf.for %e = %c0 to %c4 step %c1 {
    %at = arith.addi %first, %e : index
    %v = loop.load %A[%at] where %in else %zero : memref<4096xf32>
    loop.store %v, %C[%at] : memref<4096xf32>
  } {loop.vector}
}

// CHECK-LABEL: @guarded
// CHECK:         [[IN:%\d+]] = scf.if %in -> (vector<4xf32>) {
// CHECK:         } else {
// CHECK:           arith.constant dense<0.000000e+00> : vector<4xf32>
// CHECK:         vector.store [[IN]], %a_values

// Nothing is packed of loops that are not marked, addresses that are not aligned or not consecutive, buffers both read
// and written, and an `else` other than 0.
loop.func @alone(%A: memref<4096xf32>, %B: memref<4096xf32>, %C: memref<4096xf32>) grid(%b in 4) threads(%t in 32) {
  %one = arith.constant 1.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %in = arith.cmpi slt, %t, %c4 : index
  scf.for %e = %c0 to %c4 step %c1 {
    %v = loop.load %A[%e] : memref<4096xf32>
    loop.store %v, %C[%e] : memref<4096xf32>
  } {loop.unroll}
  scf.for %e = %c0 to %c4 step %c1 {
    %odd = arith.addi %t, %e : index
    %far = arith.muli %e, %c4 : index
    %v = loop.load %A[%odd] : memref<4096xf32>
    %w = loop.load %B[%e] where %in else %one : memref<4096xf32>
    %x = loop.load %C[%e] : memref<4096xf32>
    %s = arith.addf %v, %w : f32
    %r = arith.addf %s, %x : f32
    loop.store %r, %C[%far] : memref<4096xf32>
  } {loop.vector}
}

// CHECK-LABEL: @alone
// CHECK-NOT:     vector.load
// CHECK-NOT:     vector.store
