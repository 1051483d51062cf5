// RUN: treadle-opt %s -p memory-plan --split-input-file | filecheck %s

// What is appended is stored where the state lies, rows from %begin on, of which there are %n; nothing reads the
// argument, and nothing else is written.
func.func @main(%new: tensor<2x3x4xf32>, %past: tensor<2x8x4xf32>, %begin: tensor<i64>, %n: tensor<i64>)
    -> tensor<2x8x4xf32> attributes {states = [#graph.state<1 -> 0>]} {
  %present = graph.append %past, %new at %begin count %n {dim = 1 : i64}
      : (tensor<2x8x4xf32>, tensor<2x3x4xf32>) -> tensor<2x8x4xf32>
  func.return %present : tensor<2x8x4xf32>
}

// CHECK:      loop.func @append(%X0: memref<2x3x4xf32>, %X1: memref<i64>, %X2: memref<i64>, %C: memref<2x8x4xf32>) partial updates
// CHECK:        scf.for %row
// CHECK:          loop.store {{.*}}, %C[%block, {{.*}}] : memref<2x8x4xf32>
// CHECK:      states = [#graph.state<1 -> 0 in_place>]
// CHECK-NOT:    host.buffer input 1
// CHECK:        %present = host.buffer output 0 : memref<2x8x4xf32>
// CHECK-NEXT:   host.launch @append(%new, %begin, %n, %present)
// CHECK-NEXT:   host.return

// -----

// A state that is computed anew has two buffers, which the runtime swaps.
func.func @main(%past: tensor<8xf32>) -> tensor<8xf32> attributes {states = [#graph.state<0 -> 0>]} {
  %y = loop.kernel @twice ins(%A = %past : tensor<8xf32>) outs(%C : tensor<8xf32>) grid(%b in 1) threads(%t in 8) {
    %v = memref.load %A[%t] : memref<8xf32>
    %w = arith.addf %v, %v : f32
    memref.store %w, %C[%t] : memref<8xf32>
  }
  func.return %y : tensor<8xf32>
}

// CHECK:      states = [#graph.state<0 -> 0>]
// CHECK:        host.launch @twice(%past, %y)
