// RUN: treadle-opt %s -p loop-resolve-swizzles | filecheck %s

// Predicates below an extent stay where addresses are swizzled.
#tile = #loop.swizzle<8, 2, 4>
loop.func @tile(%n: memref<i64>, %A: memref<4096xf16>, %C: memref<64xf16>) grid(%b in 4) threads(%t in 64) {
  %tile = loop.alloc : memref<64x32xf16, #tile, #loop.space<shared>>
  %zero = arith.constant 0.0 : f16
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 64 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  %in = arith.cmpi slt, %t, %extent : index
  loop.async_copy 8 %A[%c0], %tile[%t, %c8] where %in : memref<4096xf16>, memref<64x32xf16, #tile, #loop.space<shared>>
  %v = loop.load %tile[%t, %c8] where %in else %zero : memref<64x32xf16, #tile, #loop.space<shared>>
  loop.store %v, %C[%t] where %in : memref<64xf16>
}

// CHECK:      %in = arith.cmpi slt, %t, %extent : index
// CHECK:      arith.xori
// CHECK:      loop.async_copy 8 %A[%c0], %tile[%t, {{%\S+}}] where %in
// CHECK:      arith.xori
// CHECK:      %v = loop.load %tile[%t, {{%\S+}}] where %in else %zero
// CHECK-NEXT: loop.store %v, %C[%t] where %in
