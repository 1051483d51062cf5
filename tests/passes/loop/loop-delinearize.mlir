// RUN: treadle-opt %s -p loop-delinearize | filecheck %s
// RUN: treadle-opt %s -p loop-delinearize,loop-simplify-index | filecheck %s --check-prefix SIMPLE

// A 3x3 convolution's reduction: channels, rows, columns. The carried sum and the attributes stay.
loop.func @reduction(%A: memref<1152xf32>, %C: memref<1xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c9 = arith.constant 9 : index
  %c18 = arith.constant 18 : index
  %c576 = arith.constant 576 : index
  %zero = arith.constant 0.0 : f32
  %sum = scf.for %k = %c0 to %c576 step %c1 iter_args(%s = %zero) -> (f32) {
    %ic = arith.divui %k, %c9 : index
    %tap = arith.remui %k, %c9 : index
    %kh = arith.divui %tap, %c3 : index
    %kw = arith.remui %k, %c3 : index
    %0 = arith.muli %ic, %c18 : index
    %1 = arith.muli %kw, %c3 : index
    %2 = arith.addi %0, %1 : index
    %at = arith.addi %2, %kh : index
    %v = loop.load %A[%at] : memref<1152xf32>
    %next = arith.addf %s, %v : f32
    scf.yield %next : f32
  } {here}
  loop.store %sum, %C[%c0] : memref<1xf32>
}

// CHECK-LABEL: loop.func @reduction
// CHECK:       %sum = scf.for %k0 = %c0 to %c64 step %c1 iter_args(%s = %zero) -> (f32) {
// CHECK-NEXT:    [[IC:%\d+]] = arith.muli %k0, %c9{{(_1)?}} : index
// CHECK-NEXT:    %sum_1 = scf.for %k1 = %c0 to %c3{{(_1)?}} step %c1 iter_args(%s_1 = %s) -> (f32) {
// CHECK-NEXT:      [[KH:%\d+]] = arith.muli %k1, %c3{{(_1)?}} : index
// CHECK-NEXT:      [[BASE:%\d+]] = arith.addi [[IC]], [[KH]] : index
// CHECK-NEXT:      %sum_2 = scf.for %k2 = %c0 to %c3{{(_1)?}} step %c1 iter_args(%s_2 = %s_1) -> (f32) {
// CHECK-NEXT:        %k = arith.addi [[BASE]], %k2 : index
// CHECK-NEXT:        %ic = arith.divui %k, %c9 : index
// CHECK:             scf.yield %next : f32
// CHECK-NEXT:      } {here}
// CHECK-NEXT:      scf.yield %sum_2 : f32
// CHECK-NEXT:    } {here}
// CHECK-NEXT:    scf.yield %sum_1 : f32
// CHECK-NEXT:  } {here}
// CHECK-NEXT:  loop.store %sum, %C[%c0] : memref<1xf32>

// SIMPLE-LABEL: loop.func @reduction
// SIMPLE-NOT:   divui
// SIMPLE-NOT:   remui
// SIMPLE:       loop.func

// One trip: no loop. Marked for vectors, cut where the extent is not divided, a sum's quotient: as before.
loop.func @kept(%A: memref<64xf32>) grid(%b in 4) threads(%t in 4) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c7 = arith.constant 7 : index
  %c8 = arith.constant 8 : index
  %one = arith.constant 1.0 : f32
  scf.for %once = %c2 to %c4 step %c7 {
    %0 = arith.addi %once, %b : index
    loop.store %one, %A[%0] : memref<64xf32>
  }
  scf.for %l = %c0 to %c8 step %c1 {
    %1 = arith.divui %l, %c4 : index
    loop.store %one, %A[%1] : memref<64xf32>
  } {loop.vector}
  scf.for %i = %c0 to %c7 step %c1 {
    %2 = arith.remui %i, %c4 : index
    loop.store %one, %A[%2] : memref<64xf32>
  }
  scf.for %j = %c0 to %c8 step %c1 {
    %3 = arith.addi %j, %t : index
    %4 = arith.divui %3, %c4 : index
    loop.store %one, %A[%4] : memref<64xf32>
  }
}

// CHECK-LABEL: loop.func @kept
// CHECK-NOT:   scf.for
// CHECK:       %{{\d+}} = arith.addi %c2, %b : index
// CHECK:       scf.for %l = %c0 to %c8 step %c1 {
// CHECK:       } {loop.vector}
// CHECK-NEXT:  scf.for %i = %c0 to %c7 step %c1 {
// CHECK:       scf.for %j = %c0 to %c8 step %c1 {
