// RUN: treadle-opt %s -p loop-lower-copies,loop-vectorize-accesses,loop-simplify-index,loop-prove-bounds | filecheck %s

// What an access says about its bounds stays with what becomes of it: one wide access, an asynchronous copy.
loop.func @rows(%A: memref<400xf32>, %ids: memref<32xi64>, %C: memref<128xf32>) grid(%b in 1) threads(%t in 32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c32 = arith.constant 32 : index
  %zero = arith.constant 0.0 : f32
  %tile = loop.alloc : memref<32x4xf32, #loop.space<shared>>
  %n = loop.load %ids[%t] : memref<32xi64>
  %row = arith.index_cast %n : i64 to index
  %first = arith.muli %row, %c4 : index
  %out = arith.muli %t, %c4 : index
  scf.for %e = %c0 to %c4 step %c1 {
    %at = arith.addi %first, %e : index
    %to = arith.addi %out, %e : index
    %v = loop.load %A[%at] {unproved = "the caller checked the ids"} : memref<400xf32>
    loop.store %v, %C[%to] : memref<128xf32>
  }
  loop.copy async (%e in 4) to %tile[%t, %c0] {
    %at = arith.addi %first, %e : index
    %always = arith.cmpi slt, %t, %c32 : index
    %v = loop.load %A[%at] where %always else %zero {unproved = "the caller checked the ids"} : memref<400xf32>
    loop.yield %v : f32
  } : memref<32x4xf32, #loop.space<shared>>
}

// CHECK:      vector.load %A[%{{.*}}] {unproved = "the caller checked the ids"} : memref<400xf32>, vector<4xf32>
// CHECK:      loop.async_copy 4 %A[%{{.*}}], %tile[%t, %c0] {unproved = "the caller checked the ids"} : memref<400xf32>

loop.func @strided(%A: memref<400xf32>, %ids: memref<32xi64>, %C: memref<128xf32>) grid(%b in 1) threads(%t in 1) {
  %n = loop.load %ids[%t] : memref<32xi64>
  %row = arith.index_cast %n : i64 to index
  %v = loop.strided_load %A[%row] by 3 {unproved = "ids are below 300"} : memref<400xf32>, vector<16xf32>
  loop.strided_store %v, %A[%row] by 2 {unproved = "as above"} : memref<400xf32>, vector<16xf32>
}

// CHECK-LABEL: @strided
// CHECK:       loop.strided_load %A[%row] by 3 {unproved = "ids are below 300"} : memref<400xf32>, vector<16xf32>
// CHECK-NEXT:  loop.strided_store %v, %A[%row] by 2 {unproved = "as above"} : memref<400xf32>, vector<16xf32>
