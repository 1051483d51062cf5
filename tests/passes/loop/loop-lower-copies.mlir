// RUN: treadle-opt %s -p loop-lower-copies,loop-simplify-index | filecheck %s

// Aligned rows under one predicate: one copy of 16 bytes. The row's predicate is dropped, which always holds.
loop.func @aligned(%A: memref<4096xf16>, %C: memref<1xf16>) grid(%b in 4) threads(%t in 32) {
  %tile = loop.alloc : memref<32x8xf16, #loop.space<shared>>
  %zero = arith.constant 0.0 : f16
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c32 = arith.constant 32 : index
  %c60 = arith.constant 60 : index
  %row = arith.muli %t, %c32 : index
  %in = arith.cmpi slt, %t, %c32 : index
  loop.copy async (%e in 8) to %tile[%t, %c0] {
    %first = arith.muli %b, %c8 : index
    %column = arith.addi %first, %e : index
    %at = arith.addi %row, %column : index
    %left = arith.cmpi slt, %column, %c32 : index
    %both = arith.andi %in, %left : i1
    %v = loop.load %A[%at] where %both else %zero : memref<4096xf16>
    loop.yield %v : f16
  } : memref<32x8xf16, #loop.space<shared>>
}

// CHECK-LABEL: @aligned
// CHECK-NOT:     loop.copy
// CHECK:         loop.async_copy 8 %A[%{{.*}}], %tile[%t, %c0] : memref<4096xf16>, memref<32x8xf16, #loop.space<shared>>

// Rows of 60 elements begin at multiples of 4; the predicate ends 4 elements into a group, so that only the second
// half of it may be outside: copies of 8 bytes.
loop.func @half(%A: memref<1920xf16>, %C: memref<1xf16>) grid(%b in 8) threads(%t in 32) {
  %tile = loop.alloc : memref<32x8xf16, #loop.space<shared>>
  %zero = arith.constant 0.0 : f16
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c60 = arith.constant 60 : index
  %row = arith.muli %t, %c60 : index
  loop.copy async (%e in 8) to %tile[%t, %c0] {
    %first = arith.muli %b, %c8 : index
    %column = arith.addi %first, %e : index
    %at = arith.addi %row, %column : index
    %inside = arith.cmpi sgt, %c60, %column : index
    %v = loop.load %A[%at] where %inside else %zero : memref<1920xf16>
    loop.yield %v : f16
  } : memref<32x8xf16, #loop.space<shared>>
}

// CHECK-LABEL: @half
// CHECK:         loop.async_copy 4 %A[%at], %tile[%t, %c0] : memref
// CHECK:         %inside = arith.cmpi sgt
// CHECK:         loop.async_copy 4 %A[%{{.*}}], %tile[%t, %{{.*}}] where %inside : memref

// Single elements of 4 bytes may lie anywhere; those of 2 bytes are loaded and stored, and so is what is computed,
// and what is not asked to be asynchronous.
loop.func @others(%X: memref<4096xf32>, %H: memref<4096xf16>, %C: memref<1xf16>) grid(%b in 4) threads(%t in 32) {
  %single = loop.alloc : memref<32x2xf32, #loop.space<shared>>
  %half = loop.alloc : memref<32x8xf16, #loop.space<shared>>
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  loop.copy async (%e in 2) to %single[%t, %c0] {
    %row = arith.muli %e, %c32 : index
    %at = arith.addi %row, %t : index
    %v = loop.load %X[%at] : memref<4096xf32>
    loop.yield %v : f32
  } : memref<32x2xf32, #loop.space<shared>>
  loop.copy async (%e in 8) to %half[%t, %c0] {
    %row = arith.muli %e, %c32 : index
    %at = arith.addi %row, %t : index
    %v = loop.load %H[%at] : memref<4096xf16>
    loop.yield %v : f16
  } : memref<32x8xf16, #loop.space<shared>>
  loop.copy async (%e in 8) to %half[%t, %c0] {
    %x = loop.load %X[%e] : memref<4096xf32>
    %v = arith.truncf %x : f32 to f16
    loop.yield %v : f16
  } : memref<32x8xf16, #loop.space<shared>>
  loop.copy (%e in 8) to %half[%t, %c0] {
    %v = loop.load %H[%e] : memref<4096xf16>
    loop.yield %v : f16
  } : memref<32x8xf16, #loop.space<shared>>
}

// CHECK-LABEL:   @others
// CHECK-COUNT-2: loop.async_copy 1 %X
// CHECK-NOT:     loop.async_copy
// CHECK:         scf.for
// CHECK:           [[V:%v\S*]] = loop.load %H
// CHECK-NEXT:      loop.store [[V]], %half[%t, %{{.*}}] : memref<32x8xf16, #loop.space<shared>>
// CHECK:         } {loop.unroll, loop.vector}
// CHECK:         arith.truncf
// CHECK:         } {loop.unroll, loop.vector}
// CHECK:         loop.load %H
// CHECK:         } {loop.unroll, loop.vector}

// A row, and a predicate, that are computed from the element without being sums of it: each element by itself.
loop.func @clamped(%A: memref<64x64xf32>, %C: memref<1xf16>) grid(%b in 4) threads(%t in 32) {
  %tile = loop.alloc : memref<32x4xf32, #loop.space<shared>>
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  loop.copy async (%e in 4) to %tile[%t, %c0] {
    %row = arith.minsi %e, %c2 : index
    %v = loop.load %A[%row, %e] : memref<64x64xf32>
    loop.yield %v : f32
  } : memref<32x4xf32, #loop.space<shared>>
  loop.copy async (%e in 4) to %tile[%t, %c0] {
    %least = arith.minsi %e, %c2 : index
    %inside = arith.cmpi slt, %least, %c2 : index
    %v = loop.load %A[%t, %e] where %inside else %zero : memref<64x64xf32>
    loop.yield %v : f32
  } : memref<32x4xf32, #loop.space<shared>>
}

// CHECK-LABEL:   @clamped
// CHECK-COUNT-8: loop.async_copy 1 %A
// CHECK-NOT:     loop.async_copy
