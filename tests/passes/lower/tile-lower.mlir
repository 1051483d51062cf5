// RUN: treadle-opt %s -p tile-lower | filecheck %s

// A step's copies are written twice, before the loop and in it; its product once.
loop.func @product(%A: memref<64x40xf16>, %B: memref<40x32xf16>, %C: memref<64x32xf32>) grid(%b in 1) threads(%t in 32) {
  %zero = arith.constant 0 : index
  %depth = arith.constant 16 : index
  %steps = arith.constant 3 : index
  %a = loop.alloc : memref<2x64x16xf16, #loop.space<shared>>
  %w = loop.alloc : memref<2x16x32xf16, #loop.space<shared>>
  %c = tile.fragment at [%zero, %zero] : !tile.fragment<64x32xf32>
  tile.pipelined %steps stages 2 start {
  ^bb0(%step : index, %stage : index):
    %k = arith.muli %step, %depth : index
    tile.copy %A[%zero, %k] to %a[%stage] : memref<64x40xf16>, memref<2x64x16xf16, #loop.space<shared>>
    tile.copy %B[%k, %zero] to %w[%stage] : memref<40x32xf16>, memref<2x16x32xf16, #loop.space<shared>>
  } do {
  ^bb0(%step : index, %stage : index):
    tile.gemm %a[%stage] * %w[%stage] to %c
      : memref<2x64x16xf16, #loop.space<shared>>, memref<2x16x32xf16, #loop.space<shared>>, !tile.fragment<64x32xf32>
  }
  tile.store %c to %C[%zero, %zero] : !tile.fragment<64x32xf32>, memref<64x32xf32>
}

// CHECK:      %c = loop.alloc : memref<4x2x2xvector<2x2xf32>, #loop.space<register>>
// CHECK:      scf.for %s = {{.*}} {
// CHECK:        loop.copy async (%e in 8) to %a[%s, %i, {{.*}}] {
// CHECK:          loop.load %A[{{.*}}] where {{.*}} else {{.*}} : memref<64x40xf16>
// CHECK:        loop.commit
// CHECK:      scf.for %step = {{.*}} {
// CHECK-NEXT:   loop.wait 0
// CHECK-NEXT:   loop.barrier
// CHECK:        scf.if
// CHECK:          loop.copy async
// CHECK:        loop.commit
// CHECK:        loop.load_matrix %a[
// CHECK:        loop.load_matrix transpose %w[
// CHECK:        loop.mma
// CHECK-NOT:    loop.copy async
// CHECK:      task.for (%i_{{.*}}, %j) in #task.map<repeat(1, 4) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)>
// CHECK:        loop.store {{.*}}, %C[{{.*}}] where
