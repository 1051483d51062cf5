// RUN: treadle-opt %s -p loop-hoist-invariants | filecheck %s

// Out of both loops, out of one, not at all; a load, a division by a variable and what is guarded stay.
loop.func @hoist(%A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 8) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  scf.for %i = %c0 to %c8 step %c1 {
    scf.for %k = %c0 to %c8 step %c1 {
      %c7 = arith.constant 7 : index
      %row = arith.divui %b, %c7 : index
      %rowi = arith.addi %row, %i : index
      %at = arith.addi %rowi, %k : index
      %unused = arith.muli %at, %at : index
      %v = loop.load %A[%b] : memref<64xf32>
      %e = math.exp %v : f32
      %trap = arith.remui %c8, %i : index
      %inside = arith.cmpi slt, %trap, %row : index
      scf.if %inside {
        %guarded = arith.muli %b, %c8 : index
        loop.store %e, %C[%guarded] : memref<64xf32>
      }
      loop.store %e, %C[%at] : memref<64xf32>
    }
  }
}

// CHECK-LABEL: loop.func @hoist
// CHECK:         %c7 = arith.constant 7 : index
// CHECK-NEXT:    %row = arith.divui %b, %c7 : index
// CHECK-NEXT:    scf.for %i
// CHECK-NEXT:      %rowi = arith.addi %row, %i : index
// CHECK-NEXT:      scf.for %k
// CHECK-NEXT:        %at = arith.addi %rowi, %k : index
// CHECK-NEXT:        %v = loop.load %A[%b] : memref<64xf32>
// CHECK-NEXT:        %e = math.exp %v : f32
// CHECK-NEXT:        %trap = arith.remui %c8, %i : index
// CHECK-NEXT:        %inside = arith.cmpi slt, %trap, %row : index
// CHECK-NEXT:        scf.if %inside {
// CHECK-NEXT:          %guarded = arith.muli %b, %c8 : index

// Kernels inside a program, and values that a loop carries.
func.func @main(%x: tensor<8xf32>) -> tensor<1xf32> {
  %y = loop.kernel @carry ins(%A = %x : tensor<8xf32>) outs(%C : tensor<1xf32>) grid(%b in 1) threads(%t in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %zero = arith.constant 0.0 : f32
    %sum = scf.for %i = %c0 to %c8 step %c1 iter_args(%s = %zero) -> (f32) {
      %scale = math.exp %zero : f32
      %double = arith.addf %s, %s : f32
      %next = arith.addf %double, %scale : f32
      scf.yield %next : f32
    }
    loop.store %sum, %C[%c0] : memref<1xf32>
  }
  func.return %y : tensor<1xf32>
}

// CHECK-LABEL: loop.kernel @carry
// CHECK:         %scale = math.exp %zero : f32
// CHECK-NEXT:    %sum = scf.for %i
// CHECK-NEXT:      %double = arith.addf %s, %s : f32

// A quotient of elements exists whatever the divisor is, one of indices only where the divisor is not 0.
loop.func @quotients(%A: memref<64xi32>, %C: memref<64xi32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %x = loop.load %A[%c0] : memref<64xi32>
  scf.for %i = %c0 to %c8 step %c1 {
    %quotient = arith.divsi %x, %x : i32
    %place = arith.floordivsi %c8, %b : index
    loop.store %quotient, %C[%place] : memref<64xi32>
  }
}

// CHECK-LABEL: loop.func @quotients
// CHECK:         %quotient = arith.divsi %x, %x : i32
// CHECK-NEXT:    scf.for %i
// CHECK-NEXT:      %place = arith.floordivsi %c8, %b : index
