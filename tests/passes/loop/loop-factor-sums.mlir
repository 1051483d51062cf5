// RUN: treadle-opt %s --split-input-file -p "loop-factor-sums{target=avx512}" | filecheck %s

// A block of 32 terms in two loops: their sum is scaled once.
// CHECK-LABEL: @blocks
// CHECK:       scf.for %b
// CHECK:         %part = loop.alloc : memref<1x2xvector<16xf32>, #loop.space<register>>
// CHECK:         scf.for
// CHECK:           memref.store %{{.*}}, %part[%c0,
// CHECK:         scf.for %k
// CHECK:           scf.for %j
// CHECK:             scf.for
// CHECK:               [[T:%.*]] = arith.mulf %a, %q
// CHECK-NEXT:          memref.load %part
// CHECK-NEXT:          arith.addf %{{.*}}, [[T]]
// CHECK-NEXT:          memref.store %{{.*}}, %part
// CHECK:         scf.for
// CHECK:           [[S:%.*]] = vector.load %S
// CHECK-NEXT:      memref.load %part
// CHECK-NEXT:      arith.mulf %{{.*}}, [[S]]
// CHECK-NEXT:      memref.load %acc
// CHECK-NEXT:      arith.addf
// CHECK-NEXT:      memref.store %{{.*}}, %acc
loop.func @blocks(%A: memref<128xf32>, %Q: memref<4096xi8>, %S: memref<128xf32>) grid(%g in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c16 = arith.constant 16 : index
  %acc = loop.alloc : memref<1x2xvector<16xf32>, #loop.space<register>>
  scf.for %b = %c0 to %c4 step %c1 {
    %block = arith.muli %b, %c2 : index
    scf.for %k = %c0 to %c16 step %c1 {
      scf.for %j = %c0 to %c2 step %c1 {
        scf.for %n = %c0 to %c2 step %c1 {
          %x = loop.load %A[%k] : memref<128xf32>
          %a = vector.broadcast %x : f32 to vector<16xf32>
          %bytes = vector.load %Q[%k] : memref<4096xi8>, vector<16xi8>
          %q = loop.lane_convert %bytes : vector<16xi8> to vector<16xf32>
          %at = arith.addi %block, %n : index
          %from = arith.muli %at, %c16 : index
          %s = vector.load %S[%from] : memref<128xf32>, vector<16xf32>
          %w = arith.mulf %q, %s : vector<16xf32>
          %term = arith.mulf %a, %w : vector<16xf32>
          %sum = memref.load %acc[%c0, %n] : memref<1x2xvector<16xf32>, #loop.space<register>>
          %next = arith.addf %sum, %term : vector<16xf32>
          memref.store %next, %acc[%c0, %n] : memref<1x2xvector<16xf32>, #loop.space<register>>
        } {loop.unroll}
      }
    }
  }
}

// -----

// Weights that are floats stay, since their product with the other operand may be too large.
// CHECK-LABEL: @floats
// CHECK-NOT:   %part
loop.func @floats(%A: memref<128xf32>, %Q: memref<4096xf32>, %S: memref<128xf32>) grid(%g in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c32 = arith.constant 32 : index
  %acc = loop.alloc : memref<1xvector<16xf32>, #loop.space<register>>
  scf.for %k = %c0 to %c32 step %c1 {
    scf.for %n = %c0 to %c1 step %c1 {
      %x = loop.load %A[%k] : memref<128xf32>
      %a = vector.broadcast %x : f32 to vector<16xf32>
      %q = vector.load %Q[%k] : memref<4096xf32>, vector<16xf32>
      %s = vector.load %S[%n] : memref<128xf32>, vector<16xf32>
      %w = arith.mulf %q, %s : vector<16xf32>
      %term = arith.mulf %a, %w : vector<16xf32>
      %sum = memref.load %acc[%n] : memref<1xvector<16xf32>, #loop.space<register>>
      %next = arith.addf %sum, %term : vector<16xf32>
      memref.store %next, %acc[%n] : memref<1xvector<16xf32>, #loop.space<register>>
    } {loop.unroll}
  }
}
