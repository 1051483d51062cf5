// RUN: treadle-opt %s -p loop-transpose-loads | filecheck %s

// Lanes 64 elements apart, along which %k advances by one: 20 iterations are two tiles, of which the last one begins at 4.
loop.func @panel(%B: memref<1024xf32>, %Y: memref<320xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  %c20 = arith.constant 20 : index
  scf.for %k = %c0 to %c20 step %c1 {
    %at = arith.muli %k, %c16 : index
    %v = loop.strided_load %B[%k] by 64 : memref<1024xf32>, vector<16xf32>
    vector.store %v, %Y[%at] : memref<320xf32>, vector<16xf32>
  }
}

// CHECK-LABEL: loop.func @panel
// CHECK:         scf.for %k = %c0 to %c20 step %c16{{.*}} {
// CHECK-NEXT:      %[[FIRST:k_[0-9]*]] = arith.minsi %k, %c4 : index
// CHECK-NEXT:      %tile = loop.alloc : memref<16xvector<16xf32>, #loop.space<register>>
// CHECK:           scf.for %row = %{{.*}} to %c16{{.*}} step %{{.*}} {
// CHECK:             %[[FAR:.*]] = arith.muli %row, %c64 : index
// CHECK-NEXT:        %[[AT:.*]] = arith.addi %[[FIRST]], %[[FAR]] : index
// CHECK-NEXT:        %v = vector.load %B[%[[AT]]] : memref<1024xf32>, vector<16xf32>
// CHECK-NEXT:        memref.store %v, %tile[%row] : memref<16xvector<16xf32>, #loop.space<register>>
// CHECK-NEXT:      }
// CHECK:           loop.transpose %tile[%{{.*}}] : memref<16xvector<16xf32>, #loop.space<register>>
// CHECK:           scf.for %column = %{{.*}} to %c16{{.*}} step %{{.*}} {
// CHECK-NEXT:        %[[K:.*]] = arith.addi %{{.*}}, %{{.*}} : index
// CHECK-NEXT:        %at = arith.muli %[[K]], %c16 : index
// CHECK-NEXT:        %v{{.*}} = memref.load %tile[%column] : memref<16xvector<16xf32>, #loop.space<register>>
// CHECK-NEXT:        vector.store %v{{.*}}, %Y[%at] : memref<320xf32>, vector<16xf32>

// Only the first %n lanes are on: the others make no row. A loop that runs once is no loop any more.
loop.func @masked(%B: memref<1024xf32>, %Y: memref<256xf32>) grid(%n in 9) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  %zero = arith.constant dense<0.0> : vector<16xf32>
  %on = loop.lane_mask %c0, %n : vector<16xi1>
  scf.for %k = %c0 to %c16 step %c1 {
    %at = arith.muli %k, %c16 : index
    %v = loop.strided_load %B[%k] by 64 where %on else %zero : memref<1024xf32>, vector<16xf32>
    vector.store %v, %Y[%at] : memref<256xf32>, vector<16xf32>
  }
}

// CHECK-LABEL: loop.func @masked
// CHECK-NOT:     scf.for %k
// CHECK:         scf.for %row
// CHECK:           %[[ON:.*]] = arith.cmpi slt, %row, %n : index
// CHECK-NEXT:      %{{.*}} = scf.if %[[ON]] -> (vector<16xf32>) {
// CHECK:             vector.load
// CHECK:           } else {
// CHECK-NEXT:        scf.yield %zero : vector<16xf32>
// CHECK:         loop.transpose

// Left alone: every second element, too few iterations, an element that several iterations write, a buffer that is read.
loop.func @others(%B: memref<1024xf32>, %Y: memref<512xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  scf.for %k = %c0 to %c16 step %c1 {
    %at = arith.muli %k, %c16 : index
    %v = loop.strided_load %B[%k] by 2 : memref<1024xf32>, vector<16xf32>
    vector.store %v, %Y[%at] : memref<512xf32>, vector<16xf32>
  }
  scf.for %k = %c0 to %c8 step %c1 {
    %at = arith.muli %k, %c16 : index
    %v = loop.strided_load %B[%k] by 64 : memref<1024xf32>, vector<16xf32>
    vector.store %v, %Y[%at] : memref<512xf32>, vector<16xf32>
  }
  scf.for %k = %c0 to %c16 step %c1 {
    %at = arith.muli %k, %c8 : index
    %v = loop.strided_load %B[%k] by 64 : memref<1024xf32>, vector<16xf32>
    vector.store %v, %Y[%at] : memref<512xf32>, vector<16xf32>
  }
  scf.for %k = %c0 to %c16 step %c1 {
    %at = arith.muli %k, %c16 : index
    %v = loop.strided_load %B[%k] by 64 : memref<1024xf32>, vector<16xf32>
    %y = vector.load %Y[%at] : memref<512xf32>, vector<16xf32>
    %s = arith.addf %v, %y : vector<16xf32>
    vector.store %s, %Y[%at] : memref<512xf32>, vector<16xf32>
  }
}

// CHECK-LABEL: loop.func @others
// CHECK-NOT:     loop.transpose

// Which lanes are on depends on the iteration, by more than arithmetic: the load stays.
loop.func @halves(%B: memref<200xf32>, %Y: memref<256xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %zero = arith.constant dense<0.0> : vector<16xf32>
  scf.for %k = %c0 to %c16 step %c1 {
    %first = arith.cmpi slt, %k, %c8 : index
    %end = arith.select %first, %c16, %c0 : index
    %on = loop.lane_mask %c0, %end : vector<16xi1>
    %at = arith.muli %k, %c16 : index
    %v = loop.strided_load %B[%k] by 8 where %on else %zero : memref<200xf32>, vector<16xf32>
    vector.store %v, %Y[%at] : memref<256xf32>, vector<16xf32>
  }
}

// CHECK-LABEL: loop.func @halves
// CHECK-NOT:     loop.transpose
// CHECK:         loop.strided_load %B[%k] by 8 where
