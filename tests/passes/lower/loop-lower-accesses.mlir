// RUN: treadle-opt %s -p loop-lower-accesses | filecheck %s

loop.func @k(%A : memref<8x8xf32>, %C : memref<8xf32>) grid(%b in 4) threads(%t in 1) {
  %c4 = arith.constant 4 : index
  %zero = arith.constant 0.0 : f32
  %in = arith.cmpi slt, %b, %c4 : index
  %x = loop.load %A[%b, %c4] : memref<8x8xf32>
  %y = loop.load %A[%c4, %b] where %in else %zero : memref<8x8xf32>
  loop.store %x, %C[%b] : memref<8xf32>
  loop.store %y, %C[%c4] where %in : memref<8xf32>
}

// CHECK-LABEL: loop.func @k
// CHECK:         %x = memref.load %A[%b, %c4] : memref<8x8xf32>
// CHECK-NEXT:    %y = scf.if %in -> (f32) {
// CHECK-NEXT:      %[[V:.*]] = memref.load %A[%c4, %b] : memref<8x8xf32>
// CHECK-NEXT:      scf.yield %[[V]] : f32
// CHECK-NEXT:    } else {
// CHECK-NEXT:      scf.yield %zero : f32
// CHECK-NEXT:    }
// CHECK-NEXT:    memref.store %x, %C[%b] : memref<8xf32>
// CHECK-NEXT:    scf.if %in {
// CHECK-NEXT:      memref.store %y, %C[%c4] : memref<8xf32>
// CHECK-NEXT:    }
// CHECK-NOT:     loop.load
