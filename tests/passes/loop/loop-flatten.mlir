// RUN: treadle-opt %s -p loop-flatten | filecheck %s

// A transpose: predicates and names stay, the kernel's own buffer keeps its shape.
loop.func @transpose(%A: memref<8x32xf32>, %C: memref<32x8xf32>) grid(%b in 8) threads(%t in 32) {
  %own = loop.alloc : memref<1x4xf32, #loop.space<register>>
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %in = arith.cmpi slt, %t, %b : index
  %v = loop.load %A[%b, %t] where %in else %zero : memref<8x32xf32>
  loop.store %v, %own[%c0, %c0] : memref<1x4xf32, #loop.space<register>>
  loop.store %v, %C[%t, %b] where %in : memref<32x8xf32>
}

// CHECK:      loop.func @transpose(%A: memref<256xf32>, %C: memref<256xf32>) grid(%b in 8) threads(%t in 32) {
// CHECK-DAG:    %c32 = arith.constant 32 : index
// CHECK-DAG:    %c8 = arith.constant 8 : index
// CHECK:        %own = loop.alloc : memref<1x4xf32, #loop.space<register>>
// CHECK:        [[ROW:%\d+]] = arith.muli %b, %c32 : index
// CHECK-NEXT:   [[FROM:%\d+]] = arith.addi [[ROW]], %t : index
// CHECK-NEXT:   %v = loop.load %A[[[FROM]]] where %in else %zero : memref<256xf32>
// CHECK-NEXT:   loop.store %v, %own[%c0, %c0] : memref<1x4xf32, #loop.space<register>>
// CHECK-NEXT:   [[COLUMN:%\d+]] = arith.muli %t, %c8 : index
// CHECK-NEXT:   [[TO:%\d+]] = arith.addi [[COLUMN]], %b : index
// CHECK-NEXT:   loop.store %v, %C[[[TO]]] where %in : memref<256xf32>

// Extents of 1 need no arithmetic; a scalar is the first of one element; flat buffers stay.
loop.func @corners(%s: memref<f32>, %X: memref<1x4x1xf32>, %C: memref<4xf32>) grid(%b in 4) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %a = loop.load %s[] : memref<f32>
  %x = loop.load %X[%c0, %b, %c0] : memref<1x4x1xf32>
  %v = arith.addf %a, %x : f32
  loop.store %v, %C[%b] : memref<4xf32>
}

// CHECK:      loop.func @corners(%s: memref<1xf32>, %X: memref<4xf32>, %C: memref<4xf32>)
// CHECK:        %a = loop.load %s[%{{c0(_1)?}}] : memref<1xf32>
// CHECK-NEXT:   %x = loop.load %X[%b] : memref<4xf32>
// CHECK:        loop.store %v, %C[%b] : memref<4xf32>

func.func @main() {
  %x = host.buffer input 0 : memref<8x32xf32>
  %y = host.buffer output 0 : memref<32x8xf32>
  host.launch @transpose(%x, %y) : memref<8x32xf32>, memref<32x8xf32>
  host.return
}

// CHECK:      %x = host.buffer input 0 : memref<256xf32>
// CHECK-NEXT: %y = host.buffer output 0 : memref<256xf32>
// CHECK-NEXT: host.launch @transpose(%x, %y) : memref<256xf32>, memref<256xf32>
