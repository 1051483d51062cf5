// RUN: treadle-opt %s -p loop-fuse-prologue | filecheck %s

// A mask moves into the kernel: the extent becomes one of its inputs, the comparison a predicate of the load at the
// index that the kernel reads. What is required of the result stays.
func.func @main(%x: tensor<64xf32>, %n: tensor<i64>) -> tensor<64xf32> attributes {extents = ["n"]} {
  %y = graph.fused "mask_reverse" {
    %m = graph.compute "mask" (%i) {
      %read = graph.at %n[] : tensor<i64>
      %end = arith.index_cast %read : i64 to index
      %fill = arith.constant 0.0 : f32
      %inside = arith.cmpi slt, %i, %end : index
      %v = graph.at %x[%i] where %inside else %fill : tensor<64xf32>
      graph.yield %v : f32
    } : tensor<64xf32>
    %k = loop.kernel @reverse ins(%A = %m : tensor<64xf32>) outs(%C : tensor<64xf32>)
        requires [#graph.required<d0 < 0>] grid(%b in 1) threads(%t in 64) {
      %last = arith.constant 63 : index
      %p = arith.subi %last, %t : index
      %v = loop.load %A[%p] : memref<64xf32>
      loop.store %v, %C[%t] : memref<64xf32>
    }
    graph.yield %k : tensor<64xf32>
  } requires [#graph.required<d0 < 0>] : tensor<64xf32>
  func.return %y : tensor<64xf32>
}

// CHECK:      %y = loop.kernel @reverse ins([[N:%\S+]] = %n : tensor<i64>, [[X:%\S+]] = %x : tensor<64xf32>)
// CHECK-SAME:     requires [#graph.required<d0 < 0>]
// CHECK:        %p = arith.subi %last, %t : index
// CHECK:        [[READ:%\S+]] = loop.load [[N]][] : memref<i64>
// CHECK-NEXT:   %end = arith.index_cast [[READ]] : i64 to index
// CHECK:        %inside = arith.cmpi slt, %p, %end : index
// CHECK-NEXT:   loop.load [[X]][%p] where %inside else %fill : memref<64xf32>
