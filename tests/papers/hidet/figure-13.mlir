// RUN: treadle-opt %s -p task-lower | filecheck %s
// RUN: treadle-opt %s -p task-lower,loop-flatten,loop-simplify-index | filecheck %s --check-prefix=REGISTERS

// Hidet (ASPLOS 2023), figure 13: block_mma. Each of four warps has two by two fragments of C, 16 x 16 elements each.
//   warp = threadIdx.x / 32; for i, j in (spatial(2, 2) * repeat(2, 2))(warp): A at (16 i, 0), B at (0, 16 j)
// What stands in for `wmma` and its loads: the loop over r, c and k, which multiplies the same 16 x 8 fragment of A with
// the same 8 x 16 fragment of B element by element. It deals the fragment of C to the warp's lanes by a mapping of its
// own, eight elements a lane; wmma's order of elements in its registers is another. RegsC holds the fragments of one
// thread, so its first two extents are those of the register layout, (i, j) -> (i % 2, j % 2).
// CHECK-LABEL: loop.func @block_mma
// CHECK:         %warp = arith.divui %t, %c32 : index
// CHECK:         [[ROW:%[0-9]+]] = arith.divui %warp, [[C2:%[a-z0-9_]+]] : index
// CHECK-NEXT:    [[ROWS:%[0-9]+]] = arith.muli [[ROW]], [[C2]] : index
// CHECK-NEXT:    [[COLUMN:%[0-9]+]] = arith.remui %warp, [[C2]] : index
// CHECK-NEXT:    [[COLUMNS:%[0-9]+]] = arith.muli [[COLUMN]], [[C2]] : index
// CHECK-NEXT:    scf.for %io = %{{[a-z0-9_]+}} to [[C2]] step
// CHECK-NEXT:      %i = arith.addi %io, [[ROWS]] : index
// CHECK-NEXT:      scf.for %jo = %{{[a-z0-9_]+}} to [[C2]] step
// CHECK-NEXT:        %j = arith.addi %jo, [[COLUMNS]] : index
// CHECK-NEXT:        %row = arith.muli %i, %c16 : index
// CHECK-NEXT:        %column = arith.muli %j, %c16 : index
// CHECK-NEXT:        %p = arith.remui %i, %c2 : index
// CHECK-NEXT:        %q = arith.remui %j, %c2 : index
// CHECK:             %m = arith.addi %row, %r : index
// CHECK-NEXT:        %n = arith.addi %column, %c : index
// CHECK:               loop.load %SmemA[%m, %k]
// CHECK-NEXT:          loop.load %SmemB[%k, %n]
// CHECK:               loop.store %h, %RegsC[%p, %q, %x, %y]

// The layout leaves nothing but the loops' own numbers, so that unrolled registers have constant names.
// REGISTERS:       scf.for %io =
// REGISTERS:         scf.for %jo =
// REGISTERS:           scf.for %ro =
// REGISTERS:             scf.for %co =
// REGISTERS:               loop.store %h, %RegsC[%io, %jo, %ro, %co]
loop.func @block_mma(%C: memref<64x64xf32>) grid(%b in 1) threads(%t in 128) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %SmemA = loop.alloc : memref<64x8xf32, #loop.space<shared>>
  %SmemB = loop.alloc : memref<8x64xf32, #loop.space<shared>>
  %RegsC = loop.alloc : memref<2x2x2x4xf32, #loop.space<register>>
  %warp = arith.divui %t, %c32 : index
  %lane = arith.remui %t, %c32 : index
  task.for (%i, %j) in #task.map<spatial(2, 2) * repeat(2, 2)>(%warp) {
    %row = arith.muli %i, %c16 : index
    %column = arith.muli %j, %c16 : index
    %p = arith.remui %i, %c2 : index
    %q = arith.remui %j, %c2 : index
    task.for (%r, %c) in #task.map<spatial(8, 4) * repeat(2, 4)>(%lane) {
      %m = arith.addi %row, %r : index
      %n = arith.addi %column, %c : index
      %x = arith.remui %r, %c2 : index
      %y = arith.remui %c, %c4 : index
      scf.for %k = %c0 to %c8 step %c1 {
        %a = loop.load %SmemA[%m, %k] : memref<64x8xf32, #loop.space<shared>>
        %e = loop.load %SmemB[%k, %n] : memref<8x64xf32, #loop.space<shared>>
        %f = arith.mulf %a, %e : f32
        %g = loop.load %RegsC[%p, %q, %x, %y] : memref<2x2x2x4xf32, #loop.space<register>>
        %h = arith.addf %g, %f : f32
        loop.store %h, %RegsC[%p, %q, %x, %y] : memref<2x2x2x4xf32, #loop.space<register>>
      }
    }
  }
}
