// RUN: treadle-opt %s -p loop-fuse-prologue,loop-fuse-epilogue | filecheck %s

// Hidet (ASPLOS 2023), figure 15: D[i / 50, i % 50] = (C[99 - i] * 2.0) * 3.0 with i = threadIdx.x.
// CHECK-LABEL: func.func @figure_15
// CHECK-NEXT:    %y = loop.kernel @reverse ins([[X:%[a-z0-9_]+]] = %x : tensor<100xf32>) outs([[D:%[a-zB]+]] : tensor<2x50xf32>) grid(%b in 1) threads(%t in 100) {
// CHECK-NEXT:      %last = arith.constant 99 : index
// CHECK-NEXT:      %p = arith.subi %last, %t : index
// CHECK-NEXT:      %two = arith.constant 2.000000e+00 : f32
// CHECK-NEXT:      [[V:%[a-z0-9_]+]] = loop.load [[X]][%p] : memref<100xf32>
// CHECK-NEXT:      [[TWICE:%[a-z0-9_]+]] = arith.mulf [[V]], %two : f32
// CHECK-NEXT:      [[FIFTY:%[a-z0-9_]+]] = arith.constant 50 : index
// CHECK-NEXT:      [[ROW:%[a-z0-9_]+]] = arith.divui %t, [[FIFTY]] : index
// CHECK-NEXT:      [[COLUMN:%[a-z0-9_]+]] = arith.remui %t, [[FIFTY]] : index
// CHECK:           %three = arith.constant 3.000000e+00 : f32
// CHECK:           [[ALL:%[a-z0-9_]+]] = arith.mulf [[TWICE]], %three : f32
// CHECK-NEXT:      loop.store [[ALL]], [[D]]{{\[}}[[ROW]], [[COLUMN]]{{\]}} : memref<2x50xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    func.return %y : tensor<2x50xf32>
func.func @figure_15(%x: tensor<100xf32>) -> tensor<2x50xf32> {
  %y = graph.fused "reverse" {
    %a = graph.compute (%i) {
      %two = arith.constant 2.0 : f32
      %c = graph.at %x[%i] : tensor<100xf32>
      %d = arith.mulf %c, %two : f32
      graph.yield %d : f32
    } : tensor<100xf32>
    %k = loop.kernel @reverse ins(%A = %a : tensor<100xf32>) outs(%B : tensor<100xf32>) grid(%b in 1) threads(%t in 100) {
      %last = arith.constant 99 : index
      %p = arith.subi %last, %t : index
      %v = loop.load %A[%p] : memref<100xf32>
      loop.store %v, %B[%t] : memref<100xf32>
    }
    %d = graph.compute (%p, %q) {
      %fifty = arith.constant 50 : index
      %r = arith.muli %p, %fifty : index
      %s = arith.addi %r, %q : index
      %three = arith.constant 3.0 : f32
      %e = graph.at %k[%s] : tensor<100xf32>
      %f = arith.mulf %e, %three : f32
      graph.yield %f : f32
    } : tensor<2x50xf32>
    graph.yield %d : tensor<2x50xf32>
  } : tensor<2x50xf32>
  func.return %y : tensor<2x50xf32>
}
