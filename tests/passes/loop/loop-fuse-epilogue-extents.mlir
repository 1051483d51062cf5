// RUN: treadle-opt %s -p loop-fuse-epilogue | filecheck %s

// The kernel gets what is required of the group, which is in terms of the indices that its stores have now.
func.func @main(%x: tensor<8x4xf32>, %n: tensor<i64>) -> tensor<32xf32> attributes {extents = ["n"]} {
  %y = graph.fused "double_reshape" {
    %k = loop.kernel @double ins(%A = %x : tensor<8x4xf32>) outs(%B : tensor<8x4xf32>) grid(%b in 8) threads(%t in 4) {
      %v = loop.load %A[%b, %t] : memref<8x4xf32>
      loop.store %v, %B[%b, %t] : memref<8x4xf32>
    }
    %r = graph.compute "reshape" (%i) {
      %c4 = arith.constant 4 : index
      %p = arith.divui %i, %c4 : index
      %q = arith.remui %i, %c4 : index
      %v = graph.at %k[%p, %q] : tensor<8x4xf32>
      graph.yield %v : f32
    } : tensor<32xf32>
    graph.yield %r : tensor<32xf32>
  } requires [#graph.required<d0 floordiv 4 < 0>] : tensor<32xf32>
  func.return %y : tensor<32xf32>
}

// CHECK:      %y = loop.kernel @double ins(%A = %x : tensor<8x4xf32>) outs(%B : tensor<32xf32>)
// CHECK-SAME:     requires [#graph.required<d0 floordiv 4 < 0>] grid
// CHECK:        [[ROW:%\S+]] = arith.muli %b, %c4 : index
// CHECK-NEXT:   [[AT:%\S+]] = arith.addi [[ROW]], %t : index
// CHECK:        loop.store %v, %B[[[AT]]] : memref<32xf32>
