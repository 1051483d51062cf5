// RUN: treadle-opt %s -p loop-lower-copies,loop-simplify-index --split-input-file | filecheck %s

// Rows below an extent: one predicate for 16 bytes, under which they are copied.
loop.func @rows(%n: memref<i64>, %A: memref<2048xf16>, %C: memref<1xf16>) grid(%b in 4) threads(%t in 32) {
  %tile = loop.alloc : memref<32x8xf16, #loop.space<shared>>
  %zero = arith.constant 0.0 : f16
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c32 = arith.constant 32 : index
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 64 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  %row = arith.muli %t, %c32 : index
  %in = arith.cmpi slt, %t, %extent : index
  loop.copy async (%e in 8) to %tile[%t, %c0] {
    %first = arith.muli %b, %c8 : index
    %column = arith.addi %first, %e : index
    %at = arith.addi %row, %column : index
    %v = loop.load %A[%at] where %in else %zero : memref<2048xf16>
    loop.yield %v : f16
  } : memref<32x8xf16, #loop.space<shared>>
}

// CHECK:      %in = arith.cmpi slt, %t, %extent : index
// CHECK:      loop.async_copy 8 %A[{{%\S+}}], %tile[%t, %c0] where %in

// -----

// Columns below an extent: 16 bytes may be inside in part, since nothing is known of its divisors. They are stored one by
// one.
loop.func @columns(%n: memref<i64>, %A: memref<2048xf16>, %C: memref<1xf16>) grid(%b in 4) threads(%t in 32) {
  %tile = loop.alloc : memref<32x8xf16, #loop.space<shared>>
  %zero = arith.constant 0.0 : f16
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c32 = arith.constant 32 : index
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 64 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  %row = arith.muli %t, %c32 : index
  loop.copy async (%e in 8) to %tile[%t, %c0] {
    %first = arith.muli %b, %c8 : index
    %column = arith.addi %first, %e : index
    %in = arith.cmpi slt, %column, %extent : index
    %at = arith.addi %row, %column : index
    %v = loop.load %A[%at] where %in else %zero : memref<2048xf16>
    loop.yield %v : f16
  } : memref<32x8xf16, #loop.space<shared>>
}

// CHECK-NOT:  loop.async_copy
// CHECK:      scf.for %e = %c0 to %c8
// CHECK:        %in = arith.cmpi slt, {{%\S+}}, %extent : index
// CHECK:        %v = loop.load %A[%at] where %in else %zero
// CHECK-NEXT:   loop.store %v, %tile[%t, %e]
