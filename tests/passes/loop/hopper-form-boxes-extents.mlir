// RUN: treadle-opt %s -p hopper-form-boxes | filecheck %s

// Rows from a call's extent on: where the box begins is data, and what lies beyond the tensor is 0 all the same.
loop.func @from_an_extent(%A: memref<300x64xf16>, %N: memref<i64>, %C: memref<1xf16>) grid(%b in 1) threads(%t in 128) {
  %tile = loop.alloc : memref<1x128x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
  %full = loop.alloc : memref<1x!hopper.mbarrier, #loop.space<shared>>
  %zero = arith.constant 0.0 : f16
  %c0 = arith.constant 0 : index
  %c300 = arith.constant 300 : index
  %n = loop.load %N[] : memref<i64>
  %first = arith.index_cast %n : i64 to index
  hopper.bulk_copy to %tile[%c0, %c0, %c0] at %full[%c0] {
  ^bb0(%r : index, %c : index):
    %row = arith.addi %first, %r : index
    %inside = arith.cmpi slt, %row, %c300 : index
    %v = loop.load %A[%row, %c] where %inside else %zero : memref<300x64xf16>
    hopper.yield %v : f16
  } : memref<1x128x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>, memref<1x!hopper.mbarrier, #loop.space<shared>>
}

// CHECK-LABEL: @from_an_extent
// CHECK:         hopper.tensor_map %A extents [300, 64] strides [128] box [128, 64] swizzle 128
// CHECK:         %first = arith.index_cast %n
// CHECK:         hopper.tensor_load %map_A[%first, %{{.*}}] to %tile[%c0, %c0, %c0] at %full[%c0]
