// RUN: treadle-opt %s -p loop-fuse-prologue,loop-fuse-epilogue | filecheck %s

// The doubled tensor is stored and goes on into a sum; a third tensor is computed beside, from the kernel's input.
// What no one else reads, the exponential, is passed on in a register.
// CHECK-LABEL: func.func @shared
// CHECK-NEXT:    [[D:%[a-z0-9_]+]], [[S:%[a-z0-9_]+]], [[N:%[a-z0-9_]+]] = loop.kernel @double ins(%A = %x : tensor<10xf32>, [[X:%[a-zA-Z0-9_]+]] = %r : tensor<10xf32>) outs(%B : tensor<10xf32>, [[C:%[a-zA-Z0-9_]+]] : tensor<2x5xf32>, [[E:%[a-zA-Z0-9_]+]] : tensor<10xf32>) grid(%b in 1) threads(%t in 10) {
// CHECK:           %v = arith.addf %l, %l : f32
// CHECK-NEXT:      [[EXP:%[a-z0-9_]+]] = math.exp %v : f32
// CHECK:           [[I:%[a-z0-9_]+]] = arith.divui %t
// CHECK-NEXT:      [[J:%[a-z0-9_]+]] = arith.remui %t
// CHECK:           [[SUM:%[a-z0-9_]+]] = arith.addf [[EXP]], %v : f32
// CHECK-NEXT:      [[L:%[a-z0-9_]+]] = loop.load [[X]][%t] : memref<10xf32>
// CHECK-NEXT:      [[NEG:%[a-z0-9_]+]] = arith.negf [[L]] : f32
// CHECK-NEXT:      loop.store %v, %B[%t] : memref<10xf32>
// CHECK-NEXT:      loop.store [[SUM]], [[C]][[[I]], [[J]]] : memref<2x5xf32>
// CHECK-NEXT:      loop.store [[NEG]], [[E]][%t] : memref<10xf32>
// CHECK-NOT:       loop.store
// CHECK:         func.return
func.func @shared(%x: tensor<10xf32>, %r: tensor<10xf32>) -> (tensor<10xf32>, tensor<2x5xf32>, tensor<10xf32>) {
  %d, %s, %n = graph.fused "double" {
    %k = loop.kernel @double ins(%A = %x : tensor<10xf32>) outs(%B : tensor<10xf32>) grid(%b in 1) threads(%t in 10) {
      %l = loop.load %A[%t] : memref<10xf32>
      %v = arith.addf %l, %l : f32
      loop.store %v, %B[%t] : memref<10xf32>
    }
    %e = graph.compute (%i) {
      %a = graph.at %k[%i] : tensor<10xf32>
      %v = math.exp %a : f32
      graph.yield %v : f32
    } : tensor<10xf32>
    %f = graph.compute (%i, %j) {
      %five = arith.constant 5 : index
      %h = arith.muli %i, %five : index
      %p = arith.addi %h, %j : index
      %a = graph.at %e[%p] : tensor<10xf32>
      %c = graph.at %k[%p] : tensor<10xf32>
      %v = arith.addf %a, %c : f32
      graph.yield %v : f32
    } : tensor<2x5xf32>
    %g = graph.compute (%i) {
      %a = graph.at %r[%i] : tensor<10xf32>
      %v = arith.negf %a : f32
      graph.yield %v : f32
    } : tensor<10xf32>
    graph.yield %k, %f, %g : tensor<10xf32>, tensor<2x5xf32>, tensor<10xf32>
  } : tensor<10xf32>, tensor<2x5xf32>, tensor<10xf32>
  func.return %d, %s, %n : tensor<10xf32>, tensor<2x5xf32>, tensor<10xf32>
}
