// RUN: treadle-opt %s -p loop-simplify-index | filecheck %s

// A quotient and its remainder recombine; a predicate that the ranges decide goes.
loop.func @recombine(%A: memref<64xf32>, %Y: memref<64xf32>) grid(%b in 2) threads(%t in 32) {
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %zero = arith.constant 0.0 : f32
  %0 = arith.muli %b, %c32 : index
  %l = arith.addi %0, %t : index
  %q = arith.divui %l, %c8 : index
  %r = arith.remui %l, %c8 : index
  %1 = arith.muli %q, %c8 : index
  %at = arith.addi %1, %r : index
  %low = arith.cmpi sge, %at, %c0 : index
  %high = arith.cmpi slt, %at, %c64 : index
  %inside = arith.andi %low, %high : i1
  %x = loop.load %A[%at] where %inside else %zero : memref<64xf32>
  loop.store %x, %Y[%l] where %inside : memref<64xf32>
}

// CHECK-LABEL: loop.func @recombine
// CHECK:         %[[AT:.*]] = arith.addi %{{.*}}, %t : index
// CHECK-NEXT:    %x = loop.load %A[%[[AT]]] : memref<64xf32>
// CHECK-NEXT:    loop.store %x, %Y[%[[AT]]] : memref<64xf32>
// CHECK-NEXT:  }

// What is never true: a load gives its other value, a store goes. What the ranges leave open stays.
loop.func @never(%A: memref<64xf32>, %Y: memref<64xf32>) grid(%b in 2) threads(%t in 32) {
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %zero = arith.constant 0.0 : f32
  %out = arith.cmpi sge, %t, %c64 : index
  %open = arith.cmpi slt, %t, %c1 : index
  %either = arith.ori %out, %open : i1
  %x = loop.load %A[%b] where %out else %zero : memref<64xf32>
  loop.store %x, %Y[%t] where %out : memref<64xf32>
  loop.store %x, %Y[%b] where %either : memref<64xf32>
}

// CHECK-LABEL: loop.func @never
// CHECK:         %open = arith.cmpi slt, %t, %{{.*}} : index
// CHECK-NEXT:    loop.store %zero, %Y[%b] where %open : memref<64xf32>
// CHECK-NEXT:  }

// A decided branch takes the place of its `scf.if`, and gives its values.
loop.func @branches(%A: memref<64xf32>, %Y: memref<64xf32>) grid(%b in 2) threads(%t in 32) {
  %c2 = arith.constant 2 : index
  %c32 = arith.constant 32 : index
  %zero = arith.constant 0.0 : f32
  %always = arith.cmpi slt, %b, %c2 : index
  %never = arith.cmpi sge, %t, %c32 : index
  %v = scf.if %always -> (f32) {
    %x = loop.load %A[%t] : memref<64xf32>
    scf.yield %x : f32
  } else {
    scf.yield %zero : f32
  }
  scf.if %never {
    loop.store %zero, %Y[%t] : memref<64xf32>
  }
  loop.store %v, %Y[%t] : memref<64xf32>
}

// CHECK-LABEL: loop.func @branches
// CHECK-NOT:     scf.if
// CHECK:         %x = loop.load %A[%t] : memref<64xf32>
// CHECK-NEXT:    loop.store %x, %Y[%t] : memref<64xf32>
// CHECK-NEXT:  }

// Each part of an address in the outermost place where its operands exist.
loop.func @outwards(%A: memref<4096xf32>, %Y: memref<64xf32>) grid(%b in 8) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c64 = arith.constant 64 : index
  scf.for %i = %c0 to %c8 step %c1 {
    scf.for %k = %c0 to %c8 step %c1 {
      %0 = arith.muli %b, %c8 : index
      %1 = arith.addi %0, %k : index
      %2 = arith.muli %1, %c64 : index
      %3 = arith.muli %i, %c8 : index
      %4 = arith.addi %2, %3 : index
      %x = loop.load %A[%4] : memref<4096xf32>
      loop.store %x, %Y[%3] : memref<64xf32>
    }
  }
}

// CHECK-LABEL: loop.func @outwards
// CHECK:         %[[BLOCK:.*]] = arith.muli %b, %{{.*}} : index
// CHECK-NEXT:    scf.for %i
// CHECK:           %[[ROW:.*]] = arith.addi %i, %{{.*}} : index
// CHECK:           scf.for %k = %{{.*}} {
// CHECK-NOT:         arith.muli %b
// CHECK:             %x = loop.load %A
