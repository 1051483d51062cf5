// An extent that is read, and not clamped to what the tensor has.
loop.func @open(%n: memref<i64>, %A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 1) threads(%t in 128) {
  %zero = arith.constant 0.0 : f32
  %read = memref.load %n[] : memref<i64>
  %extent = arith.index_cast %read : i64 to index
  %in = arith.cmpi slt, %t, %extent : index
  %x = loop.load %A[%t] where %in else %zero : memref<64xf32>
  loop.store %x, %C[%t] where %in : memref<64xf32>
}
