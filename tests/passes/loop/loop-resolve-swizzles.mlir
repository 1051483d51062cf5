// RUN: treadle-opt %s -p loop-resolve-swizzles | filecheck %s
// RUN: not treadle-opt %S/inputs/swizzle-of-another-use.mlir -p loop-resolve-swizzles 2>&1 | filecheck %s --check-prefix=OTHER

#tile = #loop.swizzle<8, 2, 4>
loop.func @tile(%A: memref<4096xf16>, %C: memref<64xf16>) grid(%b in 4) threads(%t in 64) {
  %tile = loop.alloc : memref<64x32xf16, #tile, #loop.space<shared>>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c8 = arith.constant 8 : index
  loop.async_copy 8 %A[%c0], %tile[%t, %c8] : memref<4096xf16>, memref<64x32xf16, #tile, #loop.space<shared>>
  %f = loop.load_matrix %tile[%t, %c0] : memref<64x32xf16, #tile, #loop.space<shared>> -> vector<4x2xf16>
  %v = loop.load %tile[%c1, %c3] : memref<64x32xf16, #tile, #loop.space<shared>>
  loop.store %v, %tile[%t, %c3] : memref<64x32xf16, #tile, #loop.space<shared>>
}

// CHECK-LABEL: @tile
// CHECK:         %tile = loop.alloc : memref<64x32xf16, #loop.space<shared>>
// CHECK:         [[ROW:%\d+]] = arith.divui %t, %{{.*}} : index
// CHECK:         [[PHASE:%\d+]] = arith.remui [[ROW]], %{{.*}} : index
// CHECK:         [[PLACE:%\d+]] = arith.xori %{{.*}}, [[PHASE]] : index
// CHECK:         [[COLUMN:%\d+]] = arith.muli [[PLACE]], %{{.*}} : index
// CHECK-NEXT:    loop.async_copy 8 %A[%c0], %tile[%t, [[COLUMN]]]
// Chunk 0 lies at the phase itself; the first two rows lie as if there were no swizzle.
// CHECK-NOT:     arith.xori
// CHECK:         loop.load_matrix %tile[%t, %{{.*}}] : memref<64x32xf16, #loop.space<shared>> -> vector<4x2xf16>
// CHECK-NEXT:    loop.load %tile[%c1, %c3] : memref<64x32xf16, #loop.space<shared>>
// CHECK-NOT:     arith.xori
// CHECK:         loop.store %v, %tile[%t, %{{.*}}] : memref<64x32xf16, #loop.space<shared>>

// OTHER: memref.load uses a swizzled buffer; accepted: loop.load, loop.store, vector.load
