// RUN: treadle-opt %s -p loop-vectorize | filecheck %s

// Neighbouring elements, one element for all lanes, elements two apart; 64 is four vectors.
loop.func @strides(%A: memref<128xf32>, %Y: memref<128xf32>) grid(%b in 2) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c64 = arith.constant 64 : index
  scf.for %i = %c0 to %c64 step %c1 {
    %twice = arith.muli %i, %c2 : index
    %x = loop.load %A[%i] : memref<128xf32>
    %one = loop.load %A[%b] : memref<128xf32>
    %even = loop.load %A[%twice] : memref<128xf32>
    %e = math.exp %x : f32
    %s = arith.addf %e, %one : f32
    %y = arith.mulf %s, %even : f32
    loop.store %x, %Y[%i] : memref<128xf32>
    loop.store %y, %Y[%twice] : memref<128xf32>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @strides
// CHECK:         scf.for %i = %c0_1 to %c4 step %c1_1 {
// CHECK-NEXT:      %0 = arith.muli %i, %c16 : index
// CHECK-NEXT:      %x = vector.load %A[%0] : memref<128xf32>, vector<16xf32>
// CHECK-NEXT:      %one = loop.load %A[%b] : memref<128xf32>
// CHECK-NEXT:      %1 = arith.muli %i, %c32 : index
// CHECK-NEXT:      %even = loop.strided_load %A[%1] by 2 : memref<128xf32>, vector<16xf32>
// CHECK-NEXT:      %e = math.exp %x : vector<16xf32>
// CHECK-NEXT:      %2 = vector.broadcast %one : f32 to vector<16xf32>
// CHECK-NEXT:      %s = arith.addf %e, %2 : vector<16xf32>
// CHECK-NEXT:      %y = arith.mulf %s, %even : vector<16xf32>
// CHECK-NEXT:      vector.store %x, %Y[%0] : memref<128xf32>, vector<16xf32>
// CHECK-NEXT:      loop.strided_store %y, %Y[%1] by 2 : memref<128xf32>, vector<16xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:  }

// A trip count that is no multiple of 16: every access has the mask of the lanes that are left.
loop.func @tail(%A: memref<21xf32>, %Y: memref<21xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c21 = arith.constant 21 : index
  scf.for %i = %c0 to %c21 step %c1 {
    %x = loop.load %A[%i] : memref<21xf32>
    loop.store %x, %Y[%i] : memref<21xf32>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @tail
// CHECK:         scf.for %i = %c0_1 to %c2 step %c1_1 {
// CHECK-NEXT:      %0 = arith.muli %i, %c16 : index
// CHECK-NEXT:      %1 = arith.subi %c21_1, %0 : index
// CHECK-NEXT:      %2 = loop.lane_mask %c0_1, %1 : vector<16xi1>
// CHECK:           %x = vector.maskedload %A[%0], %2, %{{.*}} : memref<21xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
// CHECK:           %[[LEFT:.*]] = loop.lane_mask %c0_1, %1 : vector<16xi1>
// CHECK-NEXT:      vector.maskedstore %Y[%0], %[[LEFT]], %x : memref<21xf32>, vector<16xi1>, vector<16xf32>

// A predicate that differs between lanes is a range of lanes; one that does not decides over all of them.
loop.func @predicates(%A: memref<16xf32>, %Y: memref<16xf32>) grid(%b in 4) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c16 = arith.constant 16 : index
  %pad = arith.constant 9.0 : f32
  scf.for %i = %c0 to %c16 step %c1 {
    %left = arith.subi %i, %c3 : index
    %inside = arith.cmpi sge, %left, %c0 : index
    %first = arith.cmpi slt, %b, %c3 : index
    %x = loop.load %A[%left] where %inside else %pad : memref<16xf32>
    loop.store %x, %Y[%i] where %first : memref<16xf32>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @predicates
// CHECK-NOT:     scf.for
// CHECK:         %[[INSIDE:.*]] = loop.lane_mask %c3_1, %c16_1 : vector<16xi1>
// CHECK-NEXT:    %[[PAD:.*]] = vector.broadcast %pad : f32 to vector<16xf32>
// CHECK-NEXT:    %x = vector.maskedload %A[%{{.*}}], %[[INSIDE]], %[[PAD]]
// CHECK:         %[[FIRST:.*]] = arith.cmpi slt
// CHECK-NEXT:    %[[END:.*]] = arith.select %[[FIRST]], %c16_1, %{{.*}} : index
// CHECK-NEXT:    %[[ALL:.*]] = loop.lane_mask %{{.*}}, %[[END]] : vector<16xi1>
// CHECK-NEXT:    vector.maskedstore %Y[%{{.*}}], %[[ALL]], %x

// Lanes that agree on the predicate of a load branch on it, and are masked where the loop ends inside of a vector.
loop.func @agreed(%A: memref<16xf32>, %Y: memref<21xf32>) grid(%b in 4) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c16 = arith.constant 16 : index
  %c21 = arith.constant 21 : index
  %pad = arith.constant 9.0 : f32
  %first = arith.cmpi slt, %b, %c3 : index
  scf.for %i = %c0 to %c16 step %c1 {
    %x = loop.load %A[%i] where %first else %pad : memref<16xf32>
    loop.store %x, %Y[%i] : memref<21xf32>
  } {loop.vector}
  scf.for %i = %c0 to %c21 step %c1 {
    %z = loop.load %Y[%i] where %first else %pad : memref<21xf32>
    loop.store %z, %Y[%i] : memref<21xf32>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @agreed
// CHECK:         %[[PAD:.*]] = vector.broadcast %pad : f32 to vector<16xf32>
// CHECK:         %x = scf.if %first -> (vector<16xf32>) {
// CHECK-NEXT:      %[[X:.*]] = vector.load %A[%{{.*}}] : memref<16xf32>, vector<16xf32>
// CHECK-NEXT:      scf.yield %[[X]] : vector<16xf32>
// CHECK-NEXT:    } else {
// CHECK-NEXT:      scf.yield %[[PAD]] : vector<16xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    vector.store %x, %Y
// CHECK:         scf.for
// CHECK:           %[[IN:.*]] = loop.lane_mask
// CHECK-NEXT:      %z = scf.if %first -> (vector<16xf32>) {
// CHECK-NEXT:        vector.maskedload %Y[%{{.*}}], %[[IN]],

// One element, for those lanes that the predicate lets through.
loop.func @splat(%A: memref<16xf32>, %Y: memref<16xf32>) grid(%b in 4) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c16 = arith.constant 16 : index
  %pad = arith.constant 9.0 : f32
  scf.for %i = %c0 to %c16 step %c1 {
    %inside = arith.cmpi slt, %i, %c3 : index
    %x = loop.load %A[%b] where %inside else %pad : memref<16xf32>
    loop.store %x, %Y[%i] : memref<16xf32>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @splat
// CHECK:         %[[FEW:.*]] = loop.lane_mask %{{.*}}, %c3_1 : vector<16xi1>
// CHECK:         %x = loop.strided_load %A[%b] by 0 where %[[FEW]] else %{{.*}} : memref<16xf32>, vector<16xf32>
// CHECK-NEXT:    vector.store %x, %Y

// A loop inside carries vectors. Sums of columns: the lanes are columns, the loop walks the rows.
loop.func @columns(%A: memref<80xf32>, %Y: memref<16xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c5 = arith.constant 5 : index
  %c16 = arith.constant 16 : index
  %zero = arith.constant 0.0 : f32
  scf.for %i = %c0 to %c16 step %c1 {
    %total = scf.for %k = %c0 to %c5 step %c1 iter_args(%sum = %zero) -> (f32) {
      %row = arith.muli %k, %c16 : index
      %at = arith.addi %row, %i : index
      %x = loop.load %A[%at] : memref<80xf32>
      %next = arith.addf %sum, %x : f32
      scf.yield %next : f32
    }
    loop.store %total, %Y[%i] : memref<16xf32>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @columns
// CHECK:         %[[ZERO:.*]] = vector.broadcast %zero : f32 to vector<16xf32>
// CHECK:         %total = scf.for %k = %c0_1 to %c5_1 step %c1_1 iter_args(%sum = %[[ZERO]]) -> (vector<16xf32>) {
// CHECK:           %x = vector.load %A
// CHECK-NEXT:      %next = arith.addf %sum, %x : vector<16xf32>
// CHECK-NEXT:      scf.yield %next : vector<16xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    vector.store %total, %Y

// Comparisons of lanes, and choices between them.
loop.func @leaky(%A: memref<16xf32>, %Y: memref<16xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  %zero = arith.constant 0.0 : f32
  %slope = arith.constant 0.125 : f32
  scf.for %i = %c0 to %c16 step %c1 {
    %x = loop.load %A[%i] : memref<16xf32>
    %small = arith.mulf %x, %slope : f32
    %above = arith.cmpf ogt, %x, %zero : f32
    %y = arith.select %above, %x, %small : f32
    loop.store %y, %Y[%i] : memref<16xf32>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @leaky
// CHECK:         %above = loop.lane_compare ogt, %x, %{{.*}} : vector<16xf32>
// CHECK-NEXT:    %y = loop.lane_select %above, %x, %small : vector<16xf32>

// Bytes are loaded and stored by whole vectors, also where all lanes share a predicate; integers become floats, and the
// nearest bytes.
loop.func @bytes(%A: memref<16xui8>, %B: memref<16xi32>, %Y: memref<16xi8>) grid(%b in 2) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  %first = arith.cmpi slt, %b, %c1 : index
  scf.for %i = %c0 to %c16 step %c1 {
    %x = loop.load %A[%i] : memref<16xui8>
    %w = arith.extui %x : ui8 to i32
    %z = loop.load %B[%i] : memref<16xi32>
    %d = arith.subi %w, %z : i32
    %f = arith.sitofp %d : i32 to f32
    %y = arith.fptosi %f : f32 to i8
    loop.store %y, %Y[%i] where %first : memref<16xi8>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @bytes
// CHECK:         %x = vector.load %A
// CHECK-NEXT:    %w = loop.lane_convert %x : vector<16xui8> to vector<16xi32>
// CHECK-NEXT:    %z = vector.load %B
// CHECK-NEXT:    %d = arith.subi %w, %z : vector<16xi32>
// CHECK-NEXT:    %f = loop.lane_convert %d : vector<16xi32> to vector<16xf32>
// CHECK-NEXT:    %y = loop.lane_convert %f : vector<16xf32> to vector<16xi8>
// CHECK:         scf.if
// CHECK-NEXT:      vector.store %y, %Y

// A register buffer that only whole vectors touch holds vectors, unlike one of which a scalar is read.
loop.func @buffers(%A: memref<32xf32>, %Y: memref<32xf32>) grid(%b in 1) threads(%t in 1) {
  %acc = loop.alloc : memref<2x32xf32, #loop.space<register>>
  %mixed = loop.alloc : memref<32xf32, #loop.space<register>>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c32 = arith.constant 32 : index
  scf.for %i = %c0 to %c32 step %c1 {
    %x = loop.load %A[%i] : memref<32xf32>
    loop.store %x, %acc[%c1, %i] : memref<2x32xf32, #loop.space<register>>
    loop.store %x, %mixed[%i] : memref<32xf32, #loop.space<register>>
  } {loop.vector}
  %last = loop.load %mixed[%c1] : memref<32xf32, #loop.space<register>>
  scf.for %i = %c0 to %c32 step %c1 {
    %x = loop.load %acc[%c1, %i] : memref<2x32xf32, #loop.space<register>>
    %y = arith.addf %x, %last : f32
    loop.store %y, %Y[%i] : memref<32xf32>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @buffers
// CHECK-NEXT:    %acc = loop.alloc : memref<2x2xvector<16xf32>, #loop.space<register>>
// CHECK-NEXT:    %mixed = loop.alloc : memref<32xf32, #loop.space<register>>
// CHECK:         memref.store %x, %acc[%{{.*}}, %i] : memref<2x2xvector<16xf32>, #loop.space<register>>
// CHECK:         vector.store %x, %mixed
// CHECK:         memref.load %acc[%{{.*}}, %i_1] : memref<2x2xvector<16xf32>, #loop.space<register>>

// Left alone: an index that is not affine, other elements than f32, a buffer of each iteration's own, one element
// that all iterations write, a predicate from memory.
loop.func @alone(%A: memref<16xf32>, %N: memref<16xi64>, %P: memref<16xi1>, %Y: memref<16xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c16 = arith.constant 16 : index
  scf.for %i = %c0 to %c16 step %c1 {
    %third = arith.divui %i, %c3 : index
    %x = loop.load %A[%third] : memref<16xf32>
    loop.store %x, %Y[%i] : memref<16xf32>
  } {loop.vector}
  scf.for %i = %c0 to %c16 step %c1 {
    %n = loop.load %N[%i] : memref<16xi64>
    %x = arith.sitofp %n : i64 to f32
    loop.store %x, %Y[%i] : memref<16xf32>
  } {loop.vector}
  scf.for %i = %c0 to %c16 step %c1 {
    %own = loop.alloc : memref<16xf32, #loop.space<register>>
    %x = loop.load %A[%i] : memref<16xf32>
    loop.store %x, %own[%i] : memref<16xf32, #loop.space<register>>
  } {loop.vector}
  scf.for %i = %c0 to %c16 step %c1 {
    %x = loop.load %A[%i] : memref<16xf32>
    loop.store %x, %Y[%b] : memref<16xf32>
  } {loop.vector}
  scf.for %i = %c0 to %c16 step %c1 {
    %p = loop.load %P[%i] : memref<16xi1>
    %x = loop.load %A[%c0] : memref<16xf32>
    loop.store %x, %Y[%i] where %p : memref<16xf32>
  } {loop.vector}
}

// CHECK-LABEL:   loop.func @alone
// CHECK-COUNT-5: {loop.vector}
// CHECK-NOT:     vector<

// bf16 is a type of memory: vectors are widened after a load, and rounded before a store.
loop.func @bf16_in_memory(%A: memref<64xbf16>, %B: memref<64xf32>, %Y: memref<64xbf16>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  scf.for %i = %c0 to %c64 step %c1 {
    %x = loop.load %A[%i] : memref<64xbf16>
    %w = arith.extf %x : bf16 to f32
    %z = loop.load %B[%i] : memref<64xf32>
    %s = arith.addf %w, %z : f32
    %y = arith.truncf %s : f32 to bf16
    loop.store %y, %Y[%i] : memref<64xbf16>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @bf16_in_memory
// CHECK:           %x = vector.load %A[%0] : memref<64xbf16>, vector<16xbf16>
// CHECK-NEXT:      %w = arith.extf %x : vector<16xbf16> to vector<16xf32>
// CHECK-NEXT:      %z = vector.load %B[%0] : memref<64xf32>, vector<16xf32>
// CHECK-NEXT:      %s = arith.addf %w, %z : vector<16xf32>
// CHECK-NEXT:      %y = arith.truncf %s : vector<16xf32> to vector<16xbf16>
// CHECK-NEXT:      vector.store %y, %Y[%0] : memref<64xbf16>, vector<16xbf16>

// So is f16; f32 computes what is of narrow floats.
loop.func @f16_in_memory(%A: memref<64xf16>, %Y: memref<64xf16>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  scf.for %i = %c0 to %c64 step %c1 {
    %x = loop.load %A[%i] : memref<64xf16>
    %y = arith.addf %x, %x : f16
    loop.store %y, %Y[%i] : memref<64xf16>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @f16_in_memory
// CHECK:           %x = vector.load %A[%0] : memref<64xf16>, vector<16xf16>
// CHECK-NEXT:      [[A:%.*]] = arith.extf %x : vector<16xf16> to vector<16xf32>
// CHECK-NEXT:      [[B:%.*]] = arith.extf %x : vector<16xf16> to vector<16xf32>
// CHECK-NEXT:      [[S:%.*]] = arith.addf [[A]], [[B]] : vector<16xf32>
// CHECK-NEXT:      [[Y:%.*]] = arith.truncf [[S]] : vector<16xf32> to vector<16xf16>
// CHECK-NEXT:      vector.store [[Y]], %Y[%0] : memref<64xf16>, vector<16xf16>

// Some lanes of it are on at the end.
loop.func @some_lanes_of_bf16(%A: memref<64xbf16>, %Y: memref<64xbf16>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c21 = arith.constant 21 : index
  scf.for %i = %c0 to %c21 step %c1 {
    %x = loop.load %A[%i] : memref<64xbf16>
    loop.store %x, %Y[%i] : memref<64xbf16>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @some_lanes_of_bf16
// CHECK:           vector.maskedload %A{{.*}} : memref<64xbf16>, vector<16xi1>, vector<16xbf16> into vector<16xbf16>
// CHECK:           vector.maskedstore %Y

// Elements of it that are not side by side stay scalar.
loop.func @bf16_stays_scalar(%A: memref<64xbf16>, %Y: memref<64xbf16>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c32 = arith.constant 32 : index
  scf.for %i = %c0 to %c32 step %c1 {
    %twice = arith.muli %i, %c2 : index
    %x = loop.load %A[%twice] : memref<64xbf16>
    loop.store %x, %Y[%i] : memref<64xbf16>
  } {loop.vector}
}

// CHECK-LABEL: loop.func @bf16_stays_scalar
// CHECK-NOT:     vector<
