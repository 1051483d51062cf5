// RUN: treadle-opt %s -p task-lower | filecheck %s

// Hidet (ASPLOS 2023), figure 8: 128 threads load a tile of A into shared memory together.
//   t = threadIdx.x; for io in range(4): i, k = io * 16 + t / 8, t % 8; SmemA[i, k] = A[i, k]
// CHECK-LABEL: loop.func @cooperative_load
// CHECK-NEXT:    %SmemA = loop.alloc
// CHECK-NEXT:    [[FIRST:%[a-z0-9_]+]] = arith.constant 0 : index
// CHECK-NEXT:    [[END:%[a-z0-9_]+]] = arith.constant 4 : index
// CHECK-NEXT:    [[ONE:%[a-z0-9_]+]] = arith.constant 1 : index
// CHECK-NEXT:    [[SIXTEEN:%[a-z0-9_]+]] = arith.constant 16 : index
// CHECK-NEXT:    [[EIGHT:%[a-z0-9_]+]] = arith.constant 8 : index
// CHECK-NEXT:    [[ROW:%[a-z0-9_]+]] = arith.divui %t, [[EIGHT]] : index
// CHECK-NEXT:    %k = arith.remui %t, [[EIGHT]] : index
// CHECK-NEXT:    scf.for %io = [[FIRST]] to [[END]] step [[ONE]] {
// CHECK-NEXT:      [[SKIP:%[a-z0-9_]+]] = arith.muli %io, [[SIXTEEN]] : index
// CHECK-NEXT:      %i = arith.addi [[SKIP]], [[ROW]] : index
// CHECK-NEXT:      %v = loop.load %A[%i, %k] : memref<64x8xf32>
// CHECK-NEXT:      loop.store %v, %SmemA[%i, %k] : memref<64x8xf32, #loop.space<shared>>
// CHECK-NEXT:    }
// CHECK-NEXT:  }
loop.func @cooperative_load(%A: memref<64x8xf32>) grid(%b in 1) threads(%t in 128) {
  %SmemA = loop.alloc : memref<64x8xf32, #loop.space<shared>>
  task.for (%i, %k) in #task.map<repeat(4, 1) * spatial(16, 8)>(%t) {
    %v = loop.load %A[%i, %k] : memref<64x8xf32>
    loop.store %v, %SmemA[%i, %k] : memref<64x8xf32, #loop.space<shared>>
  }
}
