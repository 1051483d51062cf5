// RUN: treadle-opt %s -p loop-unroll | filecheck %s

// What a template wants to be unrolled by two is not unrolled whole, although its variable is an index of registers.
// CHECK-LABEL: @by_two
// CHECK:         } {loop.unroll = 2 : i64}
loop.func @by_two(%A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c6 = arith.constant 6 : index
  %lines = loop.alloc : memref<6xf32, #loop.space<register>>
  scf.for %i = %c0 to %c6 step %c1 {
    %x = loop.load %A[%i] : memref<64xf32>
    loop.store %x, %lines[%i] : memref<6xf32, #loop.space<register>>
  } {loop.unroll = 2 : i64}
}
