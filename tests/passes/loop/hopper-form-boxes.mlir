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
