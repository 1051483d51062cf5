// RUN: treadle-opt %s -p hopper-form-boxes | filecheck %s

// Rows 128 b to 128 b + 127 of a matrix of 100: what the predicate leaves out lies beyond its end.
loop.func @rows(%A: memref<300x64xf16>, %C: memref<1xf16>) grid(%b in 3) threads(%t in 128) {
  %tile = loop.alloc : memref<2x128x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
  %full = loop.alloc : memref<2x!hopper.mbarrier, #loop.space<shared>>
  %zero = arith.constant 0.0 : f16
  %c0 = arith.constant 0 : index
  %c128 = arith.constant 128 : index
  %c300 = arith.constant 300 : index
  hopper.bulk_copy to %tile[%c0, %c0, %c0] at %full[%c0] {
  ^bb0(%r : index, %c : index):
    %first = arith.muli %b, %c128 : index
    %row = arith.addi %first, %r : index
    %inside = arith.cmpi slt, %row, %c300 : index
    %v = loop.load %A[%row, %c] where %inside else %zero : memref<300x64xf16>
    hopper.yield %v : f16
  } : memref<2x128x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>, memref<2x!hopper.mbarrier, #loop.space<shared>>
}

// CHECK-LABEL: @rows
// CHECK:         %map_A = hopper.tensor_map %A extents [300, 64] strides [128] box [128, 64] swizzle 128 : memref<300x64xf16>
// CHECK-NOT:     hopper.bulk_copy
// CHECK:         %[[ROW:.*]] = arith.muli %b, %{{.*}} : index
// CHECK:         hopper.tensor_load %map_A[%[[ROW]], %{{.*}}] to %tile[%c0, %c0, %c0] at %full[%c0]

// Of a tensor of three dimensions, the first two exchanged, one of which the copy does not move along: an outer
// dimension of a box of one element. Two copies of the same box share a map.
loop.func @exchanged(%A: memref<256x12x64xf16>, %C: memref<1xf16>) grid(%b in 12) threads(%t in 128) {
  %tile = loop.alloc : memref<2x128x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
  %full = loop.alloc : memref<2x!hopper.mbarrier, #loop.space<shared>>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c128 = arith.constant 128 : index
  hopper.bulk_copy to %tile[%c0, %c0, %c0] at %full[%c0] {
  ^bb0(%r : index, %c : index):
    %v = loop.load %A[%r, %b, %c] : memref<256x12x64xf16>
    hopper.yield %v : f16
  } : memref<2x128x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>, memref<2x!hopper.mbarrier, #loop.space<shared>>
  hopper.bulk_copy to %tile[%c1, %c0, %c0] at %full[%c1] {
  ^bb0(%r : index, %c : index):
    %row = arith.addi %r, %c128 : index
    %v = loop.load %A[%row, %b, %c] : memref<256x12x64xf16>
    hopper.yield %v : f16
  } : memref<2x128x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>, memref<2x!hopper.mbarrier, #loop.space<shared>>
}

// CHECK-LABEL: @exchanged
// CHECK:         hopper.tensor_map %A extents [12, 256, 64] strides [128, 1536] box [1, 128, 64] swizzle 128
// CHECK-NOT:     hopper.tensor_map
// CHECK:         hopper.tensor_load %map_A[%b, %{{.*}}, %{{.*}}] to %tile[%c0, %c0, %c0] at %full[%c0]
// CHECK:         hopper.tensor_load %map_A[%b, %{{.*}}, %{{.*}}] to %tile[%c1, %c0, %c0] at %full[%c1]

// Two dimensions along which rows move together are one, of 300.
loop.func @batches(%A: memref<3x100x64xf16>, %C: memref<1xf16>) grid(%b in 3) threads(%t in 128) {
  %tile = loop.alloc : memref<2x128x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
  %full = loop.alloc : memref<2x!hopper.mbarrier, #loop.space<shared>>
  %zero = arith.constant 0.0 : f16
  %c0 = arith.constant 0 : index
  %c100 = arith.constant 100 : index
  %c128 = arith.constant 128 : index
  %c300 = arith.constant 300 : index
  hopper.bulk_copy to %tile[%c0, %c0, %c0] at %full[%c0] {
  ^bb0(%r : index, %c : index):
    %first = arith.muli %b, %c128 : index
    %at = arith.addi %first, %r : index
    %batch = arith.divui %at, %c100 : index
    %row = arith.remui %at, %c100 : index
    %inside = arith.cmpi slt, %at, %c300 : index
    %v = loop.load %A[%batch, %row, %c] where %inside else %zero : memref<3x100x64xf16>
    hopper.yield %v : f16
  } : memref<2x128x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>, memref<2x!hopper.mbarrier, #loop.space<shared>>
}

// CHECK-LABEL: @batches
// CHECK:         %map_A = hopper.tensor_map %A extents [300, 64] strides [128] box [128, 64] swizzle 128 : memref<3x100x64xf16>
// CHECK:         hopper.tensor_load %map_A[%{{.*}}, %{{.*}}] to %tile[%c0, %c0, %c0] at %full[%c0]

// A warp's 16 rows and 64 columns go to shared memory, and from there to a box; beyond the tensor nothing is stored.
loop.func @stored(%X: memref<1xf16>, %C: memref<300x64xf16>) grid(%b in 19) threads(%t in 32) {
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %c300 = arith.constant 300 : index
  %one = arith.constant 1.0 : f16
  %first = arith.muli %b, %c16 : index
  hopper.bulk_store %c0 of 1, %c0 of 2 {
    task.for (%i, %j) in #task.map<repeat(2, 8) * spatial(8, 4) * repeat(1, 2)>(%t) {
      %row = arith.addi %first, %i : index
      %inside = arith.cmpi slt, %row, %c300 : index
      loop.store %one, %C[%row, %j] where %inside : memref<300x64xf16>
    }
  }
  hopper.bulk_wait 0
}

// CHECK-LABEL: @stored
// CHECK:         %map_C = hopper.tensor_map %C extents [300, 64] strides [128] box [16, 64] swizzle 128
// CHECK:         %staged = loop.alloc : memref<2x1x16x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
// CHECK:         hopper.bulk_wait read 1
// CHECK:         hopper.warp_barrier
// CHECK:         task.for (%i, %j)
// CHECK:           loop.store %one, %staged[%c0, %c0, %i, %j] :
// CHECK:         hopper.fence_async
// CHECK-NEXT:    hopper.warp_barrier
// CHECK-NEXT:    scf.if
// CHECK-NEXT:      hopper.tensor_store %staged[%c0, %c0, %{{.*}}, %{{.*}}] to %map_C[%{{.*}}, %{{.*}}]
// CHECK-NEXT:      hopper.bulk_commit

// Rows of a transposed tensor are no box: the stores stay.
loop.func @transposed(%X: memref<1xf16>, %C: memref<64x304xf16>) grid(%b in 19) threads(%t in 32) {
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %one = arith.constant 1.0 : f16
  %first = arith.muli %b, %c16 : index
  hopper.bulk_store %c0 of 1, %c0 of 2 {
    task.for (%i, %j) in #task.map<repeat(2, 8) * spatial(8, 4) * repeat(1, 2)>(%t) {
      %row = arith.addi %first, %i : index
      loop.store %one, %C[%j, %row] : memref<64x304xf16>
    }
  }
}

// CHECK-LABEL: @transposed
// CHECK-NOT:     hopper.
// CHECK:         loop.store %one, %C[%j, %row] : memref<64x304xf16>
