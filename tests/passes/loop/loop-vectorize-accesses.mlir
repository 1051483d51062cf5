// RUN: treadle-opt %s -p loop-vectorize-accesses | filecheck %s
// RUN: treadle-opt %s -p "loop-vectorize-accesses{bytes=8}" | filecheck %s --check-prefix HALF

// A copy of aligned neighbours is one load and one store; the predicate holds for all four or for none.
loop.func @copy(%A: memref<64xf32>) grid(%b in 5) threads(%t in 4) {
  %tile = loop.alloc : memref<4x20xf32, #loop.space<shared>>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c16 = arith.constant 16 : index
  %c64 = arith.constant 64 : index
  %zero = arith.constant 0.0 : f32
  %0 = arith.muli %b, %c16 : index
  %1 = arith.muli %t, %c4 : index
  %2 = arith.addi %0, %1 : index
  scf.for %j = %c0 to %c4 step %c1 {
    %i = arith.addi %2, %j : index
    %in = arith.cmpi slt, %i, %c64 : index
    %a = loop.load %A[%i] where %in else %zero : memref<64xf32>
    %column = arith.addi %1, %j : index
    loop.store %a, %tile[%t, %column] : memref<4x20xf32, #loop.space<shared>>
  }
}

// CHECK-LABEL: loop.func @copy
// CHECK-NOT:   scf.for
// CHECK:       %[[IN:.*]] = arith.cmpi slt, %{{.*}}, %c64
// CHECK:       %[[A:.*]] = scf.if %[[IN]] -> (vector<4xf32>) {
// CHECK-NEXT:    vector.load %A[%{{.*}}] : memref<64xf32>, vector<4xf32>
// CHECK:       } else {
// CHECK:       vector.store %[[A]], %tile[%t, %{{.*}}] : memref<4x20xf32, #loop.space<shared>>, vector<4xf32>

// HALF-LABEL: loop.func @copy
// HALF-COUNT-2: vector.store %{{.*}}, %tile[%t, %{{.*}}] : memref<4x20xf32, #loop.space<shared>>, vector<2xf32>

// What computes keeps its loop between the vectors. %Y is read as well, so its store stays where it is.
loop.func @compute(%X: memref<64xf32>, %Y: memref<64xf32>, %Z: memref<64xf32>) grid(%b in 1) threads(%t in 16) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %0 = arith.muli %t, %c4 : index
  scf.for %j = %c0 to %c4 step %c1 {
    %i = arith.addi %0, %j : index
    %x = loop.load %X[%i] : memref<64xf32>
    %e = math.exp %x : f32
    loop.store %e, %Z[%i] : memref<64xf32>
    %y = loop.load %Y[%i] : memref<64xf32>
    loop.store %y, %Y[%j] : memref<64xf32>
  }
}

// CHECK-LABEL: loop.func @compute
// CHECK:       %x_vector = loop.alloc : memref<4xf32, #loop.space<register>>
// CHECK:       vector.load %X
// CHECK:       scf.for
// CHECK:         loop.load %x_vector
// CHECK:         math.exp
// CHECK:         loop.store %{{.*}}, %z_vector
// CHECK:         loop.load %Y
// CHECK:         loop.store %{{.*}}, %Y
// CHECK:       }
// CHECK:       vector.store %{{.*}}, %Z[%{{.*}}] : memref<64xf32>, vector<4xf32>

// Unaligned, strided and long walks stay, and so does a predicate that cuts a vector.
loop.func @stays(%X: memref<128xf32>, %Y: memref<128xf32>) grid(%b in 1) threads(%t in 1) {
  %tile = loop.alloc : memref<2x18xf32, #loop.space<shared>>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %c64 = arith.constant 64 : index
  scf.for %j = %c0 to %c4 step %c1 {
    %i = arith.addi %j, %c1 : index
    %x = loop.load %X[%i] : memref<128xf32>
    %k = arith.muli %j, %c2 : index
    loop.store %x, %Y[%k] : memref<128xf32>
  }
  scf.for %j = %c0 to %c64 step %c1 {
    %x = loop.load %X[%j] : memref<128xf32>
    loop.store %x, %Y[%j] : memref<128xf32>
  }
  scf.for %j = %c0 to %c4 step %c1 {
    %in = arith.cmpi slt, %j, %c3 : index
    %x = loop.load %X[%j] : memref<128xf32>
    loop.store %x, %Y[%j] where %in : memref<128xf32>
  }
}

// CHECK-LABEL: loop.func @stays
// CHECK:       loop.load %X
// CHECK:       loop.store %{{.*}}, %Y
// CHECK:       loop.load %X
// CHECK:       loop.store %{{.*}}, %Y
// CHECK:       loop.load %x_vector
// CHECK:       loop.store %{{.*}}, %Y[%{{.*}}] where

// What stands in for a load differs from lane to lane: that load stays, the other becomes a vector.
loop.func @instead(%X: memref<64xf32>, %Y: memref<64xf32>, %Z: memref<64xf32>) grid(%b in 16) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %0 = arith.muli %b, %c4 : index
  scf.for %j = %c0 to %c4 step %c1 {
    %i = arith.addi %0, %j : index
    %x = loop.load %X[%i] : memref<64xf32>
    %in = arith.cmpi slt, %b, %c8 : index
    %y = loop.load %Y[%i] where %in else %x : memref<64xf32>
    loop.store %y, %Z[%i] : memref<64xf32>
  }
}

// CHECK-LABEL: loop.func @instead
// CHECK:       vector.load %X
// CHECK:       scf.for %j
// CHECK:         %[[X:.*]] = loop.load %x_vector[%j]
// CHECK:         loop.load %Y[%{{.*}}] where %in else %[[X]]
