// RUN: treadle-opt %s -p tile-lower | filecheck %s

// Steps that a call decides: copies that start before the loop are of steps that there are, and the loop ends with them.
loop.func @rows(%n: memref<i64>, %A: memref<64x64xf16>, %B: memref<64x32xf16>, %C: memref<64x32xf32>) grid(%b in 1) threads(%t in 32) {
  %zero = arith.constant 0 : index
  %depth = arith.constant 16 : index
  %read = memref.load %n[] : memref<i64>
  %extent = arith.index_cast %read : i64 to index
  %steps = arith.ceildivui %extent, %depth : index
  %a = loop.alloc : memref<3x64x16xf16, #loop.space<shared>>
  %w = loop.alloc : memref<3x16x32xf16, #loop.space<shared>>
  %c = tile.fragment at [%zero, %zero] : !tile.fragment<64x32xf32>
  tile.pipelined %steps stages 3 start {
  ^bb0(%step : index, %stage : index):
    %k = arith.muli %step, %depth : index
    tile.copy %A[%zero, %k] to %a[%stage] : memref<64x64xf16>, memref<3x64x16xf16, #loop.space<shared>>
    tile.copy %B[%k, %zero] to %w[%stage] : memref<64x32xf16>, memref<3x16x32xf16, #loop.space<shared>>
  } do {
  ^bb0(%step : index, %stage : index):
    tile.gemm %a[%stage] * %w[%stage] to %c
      : memref<3x64x16xf16, #loop.space<shared>>, memref<3x16x32xf16, #loop.space<shared>>, !tile.fragment<64x32xf32>
  }
  tile.store %c to %C[%zero, %zero] : !tile.fragment<64x32xf32>, memref<64x32xf32>
}

// CHECK:      [[STEPS:%[a-z]+]] = arith.ceildivui
// CHECK:      scf.for %s = {{.*}} {
// CHECK-NEXT:   %{{.*}} = arith.cmpi slt, %s, [[STEPS]] : index
// CHECK-NEXT:   scf.if
// CHECK:          loop.copy async
// CHECK:        loop.commit
// CHECK:      scf.for %step = {{.*}} to [[STEPS]] step {{.*}} {
// CHECK-NEXT:   loop.wait 1
