// RUN: treadle-opt %s -p "loop-factor-sums{target=avx512}" | filecheck %s

// As many blocks as a call has: each is scaled once. As many terms as a call has are not counted, and stay.
// CHECK-LABEL: @a_part_of_the_blocks
// CHECK:       scf.for %b = %c0 to %end
// CHECK:         %part = loop.alloc
// CHECK:         memref.store %{{.*}}, %acc[
// CHECK:       scf.for %k{{.*}} to %end
// CHECK-NOT:     %part
loop.func @a_part_of_the_blocks(%extent: memref<i64>, %A: memref<128xf32>, %Q: memref<4096xi8>, %S: memref<128xf32>) grid(%g in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c32 = arith.constant 32 : index
  %acc = loop.alloc : memref<1xvector<16xf32>, #loop.space<register>>
  %blocks = loop.load %extent[] : memref<i64>
  %end = arith.index_cast %blocks : i64 to index
  scf.for %b = %c0 to %end step %c1 {
    scf.for %k = %c0 to %c32 step %c1 {
      scf.for %n = %c0 to %c1 step %c1 {
        %x = loop.load %A[%k] : memref<128xf32>
        %a = vector.broadcast %x : f32 to vector<16xf32>
        %bytes = vector.load %Q[%k] : memref<4096xi8>, vector<16xi8>
        %q = loop.lane_convert %bytes : vector<16xi8> to vector<16xf32>
        %s = vector.load %S[%b] : memref<128xf32>, vector<16xf32>
        %w = arith.mulf %q, %s : vector<16xf32>
        %term = arith.mulf %a, %w : vector<16xf32>
        %sum = memref.load %acc[%n] : memref<1xvector<16xf32>, #loop.space<register>>
        %next = arith.addf %sum, %term : vector<16xf32>
        memref.store %next, %acc[%n] : memref<1xvector<16xf32>, #loop.space<register>>
      } {loop.unroll}
    }
  }
  %other = loop.alloc : memref<1xvector<16xf32>, #loop.space<register>>
  scf.for %k = %c0 to %end step %c1 {
    scf.for %n = %c0 to %c1 step %c1 {
      %bytes = vector.load %Q[%k] : memref<4096xi8>, vector<16xi8>
      %q = loop.lane_convert %bytes : vector<16xi8> to vector<16xf32>
      %s = vector.load %S[%n] : memref<128xf32>, vector<16xf32>
      %w = arith.mulf %q, %s : vector<16xf32>
      %sum = memref.load %other[%n] : memref<1xvector<16xf32>, #loop.space<register>>
      %next = arith.addf %sum, %w : vector<16xf32>
      memref.store %next, %other[%n] : memref<1xvector<16xf32>, #loop.space<register>>
    } {loop.unroll}
  }
}
