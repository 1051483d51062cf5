// RUN: treadle-opt %s -p loop-skip-padding --split-input-file | filecheck %s

// All that a block does is in a loop over tiles of rows, with its buffers: the loop ends at the rows that a call needs,
// for all threads, which wait for one another in it.
func.func @main(%x: tensor<512x2xf32>, %seq: tensor<i64>) -> tensor<512x2xf32> attributes {extents = ["seq"]} {
  %y = loop.kernel @k ins(%A = %x : tensor<512x2xf32>) outs(%C : tensor<512x2xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 1) threads(%thread in 2) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c512 = arith.constant 512 : index
    scf.for %m = %c0 to %c512 step %c1 {
      %s = loop.alloc : memref<2xf32, #loop.space<shared>>
      %v = loop.load %A[%m, %thread] : memref<512x2xf32>
      loop.store %v, %s[%thread] : memref<2xf32, #loop.space<shared>>
      loop.barrier
      %other = arith.subi %c1, %thread : index
      %w = loop.load %s[%other] : memref<2xf32, #loop.space<shared>>
      loop.store %w, %C[%m, %thread] : memref<512x2xf32>
    }
  }
  func.return %y : tensor<512x2xf32>
}

// CHECK:      loop.kernel @k
// CHECK:      [[SEQ:%.*]] = arith.index_cast
// CHECK:      scf.for %m = %c0 to [[SEQ]] step %c1

// -----

// A buffer outside of the loop may carry something from one tile to the next.
func.func @main(%x: tensor<512x2xf32>, %seq: tensor<i64>) -> tensor<512x2xf32> attributes {extents = ["seq"]} {
  %y = loop.kernel @k ins(%A = %x : tensor<512x2xf32>) outs(%C : tensor<512x2xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 1) threads(%thread in 2) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c512 = arith.constant 512 : index
    %s = loop.alloc : memref<2xf32, #loop.space<shared>>
    scf.for %m = %c0 to %c512 step %c1 {
      %v = loop.load %A[%m, %thread] : memref<512x2xf32>
      loop.store %v, %s[%thread] : memref<2xf32, #loop.space<shared>>
      loop.barrier
      %other = arith.subi %c1, %thread : index
      %w = loop.load %s[%other] : memref<2xf32, #loop.space<shared>>
      loop.store %w, %C[%m, %thread] : memref<512x2xf32>
    }
  }
  func.return %y : tensor<512x2xf32>
}

// CHECK:      scf.for %m = %c0 to %c512 step %c1

// -----

// Blocks add up each tile's sums together: rows are the same for all of them, columns are a block's own.
func.func @main(%x: tensor<512x4xf32>, %rows: tensor<i64>, %columns: tensor<i64>) -> tensor<512x4xf32>
    attributes {extents = ["rows", "columns"]} {
  %y = loop.kernel @k ins(%A = %x : tensor<512x4xf32>) outs(%C : tensor<512x4xf32>)
      requires [#graph.required<d0 < 0, d1 < 1>] grid(%block in 2) threads(%thread in 2) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c512 = arith.constant 512 : index
    scf.for %m = %c0 to %c512 step %c1 {
      %counters = loop.alloc : memref<512xi32, #loop.space<zeroed>>
      %first = arith.muli %block, %c2 : index
      %n = arith.addi %first, %thread : index
      %v = loop.load %A[%m, %n] : memref<512x4xf32>
      %last = loop.arrive %counters[%m] of 2 : memref<512xi32, #loop.space<zeroed>>
      loop.store %v, %C[%m, %n] : memref<512x4xf32>
    }
  }
  func.return %y : tensor<512x4xf32>
}

// CHECK:      loop.load %rows_1[]
// CHECK:      [[ROWS:%.*]] = arith.index_cast
// CHECK-NOT:  scf.if
// CHECK:      scf.for %m = %c0 to [[ROWS]] step %c1
// CHECK-NOT:  scf.if
