// RUN: treadle-opt %s -p loop-clamp-reductions --split-input-file | filecheck %s

// Terms beyond the extent are 0: the loop ends there, and the load needs no predicate. So it does for terms that were
// copied to a buffer first, and the copy does, too.
func.func @main(%x: tensor<8x32xf32>, %w: tensor<32x16xf32>, %n: tensor<i64>) -> tensor<8x16xf32>
    attributes {extents = ["n"]} {
  %y = loop.kernel @sums ins(%A = %x : tensor<8x32xf32>, %B = %w : tensor<32x16xf32>, %N = %n : tensor<i64>)
      outs(%C : tensor<8x16xf32>) grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c32 = arith.constant 32 : index
    %zero = arith.constant 0.0 : f32
    %acc = loop.alloc : memref<8x16xf32, #loop.space<register>>
    %panel = loop.alloc : memref<32x16xf32, #loop.space<register>>
    task.for (%k, %j) in #task.map<repeat(32, 16)> {
      %read = loop.load %N[] : memref<i64>
      %end = arith.index_cast %read : i64 to index
      %inside = arith.cmpi slt, %k, %end : index
      %b = loop.load %B[%k, %j] where %inside else %zero : memref<32x16xf32>
      loop.store %b, %panel[%k, %j] : memref<32x16xf32, #loop.space<register>>
    }
    scf.for %k = %c0 to %c32 step %c1 {
      task.for (%i, %j) in #task.map<repeat(8, 16)> {
        %read = loop.load %N[] : memref<i64>
        %end = arith.index_cast %read : i64 to index
        %inside = arith.cmpi slt, %k, %end : index
        %a = loop.load %A[%i, %k] : memref<8x32xf32>
        %b = loop.load %B[%k, %j] where %inside else %zero : memref<32x16xf32>
        %t = arith.mulf %a, %b : f32
        %s = loop.load %acc[%i, %j] : memref<8x16xf32, #loop.space<register>>
        %u = arith.addf %s, %t : f32
        loop.store %u, %acc[%i, %j] : memref<8x16xf32, #loop.space<register>>
      }
    }
    scf.for %k = %c0 to %c32 step %c1 {
      task.for (%i, %j) in #task.map<repeat(8, 16)> {
        %a = loop.load %A[%i, %k] : memref<8x32xf32>
        %b = loop.load %panel[%k, %j] : memref<32x16xf32, #loop.space<register>>
        %t = arith.mulf %a, %b : f32
        %s = loop.load %acc[%i, %j] : memref<8x16xf32, #loop.space<register>>
        %u = arith.addf %s, %t : f32
        loop.store %u, %acc[%i, %j] : memref<8x16xf32, #loop.space<register>>
      }
    }
  }
  func.return %y : tensor<8x16xf32>
}

// CHECK:      [[WHOLE:%.*]] = arith.constant 32 : index
// CHECK-NEXT: [[END:%.*]] = arith.minsi [[WHOLE]], %{{.*}} : index
// CHECK:      scf.for %k = %{{.*}} to [[COPIED:%.*]] step %{{.*}} {
// CHECK-NEXT:   task.for (%j) in #task.map<repeat(16)> {
// CHECK:          %b = loop.load %B[%k, %j] : memref<32x16xf32>
// CHECK-NEXT:     loop.store %b, %panel[%k, %j]
// CHECK:      scf.for %{{.*}} = %c0 to [[FIRST:%.*]] step %c1 {
// CHECK:        loop.load %B[%{{.*}}] : memref<32x16xf32>
// CHECK:      scf.for %{{.*}} = %c0 to [[SECOND:%.*]] step %c1 {
// CHECK-NOT:  %c32 step

// -----

// All terms of the first four count: the mask is by what is no extent, it does not give 0, what is stored is no sum, and
// there is another sum.
func.func @main(%x: tensor<32x16xf32>, %n: tensor<i64>, %m: tensor<i64>) -> tensor<16xf32> attributes {extents = ["m"]} {
  %y = loop.kernel @whole ins(%A = %x : tensor<32x16xf32>, %M = %m : tensor<i64>, %N = %n : tensor<i64>)
      outs(%C : tensor<16xf32>) grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c32 = arith.constant 32 : index
    %zero = arith.constant 0.0 : f32
    %one = arith.constant 1.0 : f32
    %acc = loop.alloc : memref<16xf32, #loop.space<register>>
    %other = loop.alloc : memref<16xf32, #loop.space<register>>
    %read = loop.load %N[] : memref<i64>
    %number = arith.index_cast %read : i64 to index
    %extent_read = loop.load %M[] : memref<i64>
    %extent = arith.index_cast %extent_read : i64 to index
    scf.for %k = %c0 to %c32 step %c1 {
      task.for (%j) in #task.map<repeat(16)> {
        %inside = arith.cmpi slt, %k, %number : index
        %a = loop.load %A[%k, %j] where %inside else %zero : memref<32x16xf32>
        %s = loop.load %acc[%j] : memref<16xf32, #loop.space<register>>
        %u = arith.addf %s, %a : f32
        loop.store %u, %acc[%j] : memref<16xf32, #loop.space<register>>
      }
    }
    scf.for %k = %c0 to %c32 step %c1 {
      task.for (%j) in #task.map<repeat(16)> {
        %inside = arith.cmpi slt, %k, %extent : index
        %a = loop.load %A[%k, %j] where %inside else %one : memref<32x16xf32>
        %s = loop.load %acc[%j] : memref<16xf32, #loop.space<register>>
        %u = arith.addf %s, %a : f32
        loop.store %u, %acc[%j] : memref<16xf32, #loop.space<register>>
      }
    }
    scf.for %k = %c0 to %c32 step %c1 {
      task.for (%j) in #task.map<repeat(16)> {
        %inside = arith.cmpi slt, %k, %extent : index
        %a = loop.load %A[%k, %j] where %inside else %zero : memref<32x16xf32>
        loop.store %a, %other[%j] : memref<16xf32, #loop.space<register>>
      }
    }
    scf.for %k = %c0 to %c32 step %c1 {
      task.for (%j) in #task.map<repeat(16)> {
        %inside = arith.cmpi slt, %k, %extent : index
        %a = loop.load %A[%k, %j] where %inside else %zero : memref<32x16xf32>
        %s = loop.load %acc[%j] : memref<16xf32, #loop.space<register>>
        %u = arith.addf %s, %a : f32
        loop.store %u, %acc[%j] : memref<16xf32, #loop.space<register>>
        %t = loop.load %other[%j] : memref<16xf32, #loop.space<register>>
        %v = arith.addf %t, %one : f32
        loop.store %v, %other[%j] : memref<16xf32, #loop.space<register>>
      }
    }
    scf.for %k = %c0 to %c32 step %c1 {
      task.for (%j) in #task.map<repeat(16)> {
        %inside = arith.cmpi slt, %k, %extent : index
        %a = loop.load %A[%k, %j] where %inside else %zero : memref<32x16xf32>
        %s = loop.load %acc[%j] : memref<16xf32, #loop.space<register>>
        %u = arith.addf %s, %a : f32
        loop.store %u, %acc[%j] : memref<16xf32, #loop.space<register>>
      }
    }
  }
  func.return %y : tensor<16xf32>
}

// CHECK:         loop.kernel @whole
// CHECK:         [[END:%.*]] = arith.minsi
// CHECK-COUNT-4: to %c32 step %c1 {
// CHECK:         to [[END]] step %c1 {

// -----

// What is copied is also read where no sum ends: all of it is copied.
func.func @main(%w: tensor<32x16xf32>, %n: tensor<i64>) -> tensor<32x16xf32> attributes {extents = ["n"]} {
  %y = loop.kernel @copied ins(%B = %w : tensor<32x16xf32>, %N = %n : tensor<i64>) outs(%C : tensor<32x16xf32>)
      grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c32 = arith.constant 32 : index
    %zero = arith.constant 0.0 : f32
    %acc = loop.alloc : memref<16xf32, #loop.space<register>>
    %panel = loop.alloc : memref<32x16xf32, #loop.space<register>>
    task.for (%k, %j) in #task.map<repeat(32, 16)> {
      %read = loop.load %N[] : memref<i64>
      %end = arith.index_cast %read : i64 to index
      %inside = arith.cmpi slt, %k, %end : index
      %b = loop.load %B[%k, %j] where %inside else %zero : memref<32x16xf32>
      loop.store %b, %panel[%k, %j] : memref<32x16xf32, #loop.space<register>>
    }
    scf.for %k = %c0 to %c32 step %c1 {
      task.for (%j) in #task.map<repeat(16)> {
        %b = loop.load %panel[%k, %j] : memref<32x16xf32, #loop.space<register>>
        %s = loop.load %acc[%j] : memref<16xf32, #loop.space<register>>
        %u = arith.addf %s, %b : f32
        loop.store %u, %acc[%j] : memref<16xf32, #loop.space<register>>
      }
    }
    task.for (%k, %j) in #task.map<repeat(32, 16)> {
      %b = loop.load %panel[%k, %j] : memref<32x16xf32, #loop.space<register>>
      loop.store %b, %C[%k, %j] : memref<32x16xf32>
    }
  }
  func.return %y : tensor<32x16xf32>
}

// CHECK:      loop.kernel @copied
// CHECK:      task.for (%k, %j) in #task.map<repeat(32, 16)> {
// CHECK:        loop.load %B[%k, %j] where
// CHECK:      scf.for %{{.*}} = %c0 to [[END:%.*]] step %c1 {
