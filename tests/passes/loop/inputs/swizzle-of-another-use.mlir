loop.func @tile(%C: memref<64xf16>) grid(%b in 4) threads(%t in 64) {
  %tile = loop.alloc : memref<64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
  %c0 = arith.constant 0 : index
  %v = memref.load %tile[%t, %c0] : memref<64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
  loop.store %v, %C[%t] : memref<64xf16>
}
