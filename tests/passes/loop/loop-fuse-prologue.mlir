// RUN: treadle-opt %s -p loop-fuse-prologue | filecheck %s

// Two producers, one inside the other, move into the kernel; the group that held them dissolves.
// CHECK-LABEL: func.func @chain
// CHECK-NEXT:    %y = loop.kernel @reverse ins([[X:%[a-z0-9_]+]] = %x : tensor<100xf32>) outs([[C:%C]] : tensor<100xf32>) grid(%b in 1) threads(%t in 100) {
// CHECK-NEXT:      %last = arith.constant 99 : index
// CHECK-NEXT:      %p = arith.subi %last, %t : index
// CHECK-NEXT:      [[TWO:%[a-z0-9_]+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT:      [[E:%[a-z0-9_]+]] = loop.load [[X]][%p] : memref<100xf32>
// CHECK-NEXT:      [[R:%[a-z0-9_]+]] = math.exp [[E]] : f32
// CHECK-NEXT:      [[D:%[a-z0-9_]+]] = arith.mulf [[R]], [[TWO]] : f32
// CHECK-NEXT:      loop.store [[D]], [[C]][%t] : memref<100xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    func.return %y : tensor<100xf32>
func.func @chain(%x: tensor<100xf32>) -> tensor<100xf32> {
  %y = graph.fused "reverse" {
    %e = graph.compute (%i) {
      %c = graph.at %x[%i] : tensor<100xf32>
      %r = math.exp %c : f32
      graph.yield %r : f32
    } : tensor<100xf32>
    %a = graph.compute (%i) {
      %two = arith.constant 2.0 : f32
      %c = graph.at %e[%i] : tensor<100xf32>
      %d = arith.mulf %c, %two : f32
      graph.yield %d : f32
    } : tensor<100xf32>
    %k = loop.kernel @reverse ins(%A = %a : tensor<100xf32>) outs(%C : tensor<100xf32>) grid(%b in 1) threads(%t in 100) {
      %last = arith.constant 99 : index
      %p = arith.subi %last, %t : index
      %v = loop.load %A[%p] : memref<100xf32>
      loop.store %v, %C[%t] : memref<100xf32>
    }
    graph.yield %k : tensor<100xf32>
  } : tensor<100xf32>
  func.return %y : tensor<100xf32>
}

// The predicate guards the producer's own load, which gives a placeholder; the select restores the `else`.
// CHECK-LABEL: func.func @guarded
// CHECK:         %in = arith.cmpi slt, %t, %ten : index
// CHECK-NEXT:    [[NONE:%[a-z0-9_]+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:    [[L:%[a-z0-9_]+]] = loop.load [[X:%[a-z0-9_]+]][%t] where %in else [[NONE]] : memref<10xf32>
// CHECK-NEXT:    [[R:%[a-z0-9_]+]] = math.exp [[L]] : f32
// CHECK-NEXT:    [[V:%[a-z0-9_]+]] = arith.select %in, [[R]], %half : f32
// CHECK-NEXT:    loop.store [[V]], %C[%t]
func.func @guarded(%x: tensor<10xf32>) -> tensor<16xf32> {
  %y = graph.fused "exp_pad" {
    %a = graph.compute (%i) {
      %c = graph.at %x[%i] : tensor<10xf32>
      %r = math.exp %c : f32
      graph.yield %r : f32
    } : tensor<10xf32>
    %k = loop.kernel @exp_pad ins(%A = %a : tensor<10xf32>) outs(%C : tensor<16xf32>) grid(%b in 1) threads(%t in 16) {
      %ten = arith.constant 10 : index
      %half = arith.constant 0.5 : f32
      %in = arith.cmpi slt, %t, %ten : index
      %v = loop.load %A[%t] where %in else %half : memref<10xf32>
      loop.store %v, %C[%t] : memref<16xf32>
    }
    graph.yield %k : tensor<16xf32>
  } : tensor<16xf32>
  func.return %y : tensor<16xf32>
}

// A producer that moves data, with the kernel's own `else`, needs one load and no select: the predicates are joined.
// CHECK-LABEL: func.func @moved
// CHECK:         [[BOTH:%[a-z0-9_]+]] = arith.andi %in, [[INNER:%[a-z0-9_]+]] : i1
// CHECK-NEXT:    [[V:%[a-z0-9_]+]] = loop.load [[X:%[a-z0-9_]+]][%t] where [[BOTH]] else [[ZERO:%[a-z0-9_]+]] : memref<8xf32>
// CHECK-NEXT:    loop.store [[V]], %C[%t]
func.func @moved(%x: tensor<8xf32>) -> tensor<16xf32> {
  %y = graph.fused "pad" {
    %a = graph.compute (%i) {
      %eight = arith.constant 8 : index
      %zero = arith.constant 0.0 : f32
      %inner = arith.cmpi slt, %i, %eight : index
      %c = graph.at %x[%i] where %inner else %zero : tensor<8xf32>
      graph.yield %c : f32
    } : tensor<10xf32>
    %k = loop.kernel @pad ins(%A = %a : tensor<10xf32>) outs(%C : tensor<16xf32>) grid(%b in 1) threads(%t in 16) {
      %ten = arith.constant 10 : index
      %zero = arith.constant 0.0 : f32
      %in = arith.cmpi slt, %t, %ten : index
      %v = loop.load %A[%t] where %in else %zero : memref<10xf32>
      loop.store %v, %C[%t] : memref<16xf32>
    }
    graph.yield %k : tensor<16xf32>
  } : tensor<16xf32>
  func.return %y : tensor<16xf32>
}
