// RUN: treadle-opt %s -p memory-plan | filecheck %s

// Two kernels of one body share a function; the first result lives in the arena, the second is the output.
// An argument that is returned is copied.

func.func @main(%x : tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<3x4xf32>)
    attributes {input_names = ["image"], output_names = ["y", "same"]} {
  %h = loop.kernel @relu ins(%A = %x : tensor<3x4xf32>) outs(%C : tensor<3x4xf32>) grid(%b in 3) threads(%t in 4) {
    %v = memref.load %A[%b, %t] : memref<3x4xf32>
    memref.store %v, %C[%b, %t] : memref<3x4xf32>
  }
  %y = loop.kernel @relu_1 ins(%D = %h : tensor<3x4xf32>) outs(%E : tensor<3x4xf32>) grid(%p in 3) threads(%q in 4) {
    %w = memref.load %D[%p, %q] : memref<3x4xf32>
    memref.store %w, %E[%p, %q] : memref<3x4xf32>
  }
  func.return %y, %x : tensor<3x4xf32>, tensor<3x4xf32>
}

// CHECK:      loop.func @relu(%A: memref<3x4xf32>, %C: memref<3x4xf32>) grid(%b in 3) threads(%t in 4) {
// CHECK-NOT:  @relu_1
// CHECK:      loop.func @copy_1(%x: memref<3x4xf32>, %y: memref<3x4xf32>) grid(%b in 1) threads(%t in 1)
// CHECK:        scf.for %e = %c0 to %c12 step %c1 {
// CHECK-NEXT:     %[[I:.*]] = arith.divui %e, %c4 : index
// CHECK-NEXT:     %[[J:.*]] = arith.remui %e, %c4 : index
// CHECK-NEXT:     %v = loop.load %x[%[[I]], %[[J]]] : memref<3x4xf32>
// CHECK-NEXT:     loop.store %v, %y[%[[I]], %[[J]]] : memref<3x4xf32>
// CHECK:      func.func @main() attributes {input_names = ["image"], output_names = ["y", "same"], arena_bytes = 64 : i64,
// CHECK-SAME:     input_types = [tensor<3x4xf32>], output_types = [tensor<3x4xf32>, tensor<3x4xf32>]} {
// CHECK-NEXT:   %x = host.buffer input 0 : memref<3x4xf32>
// CHECK-NEXT:   %h = host.buffer arena 0 : memref<3x4xf32>
// CHECK-NEXT:   %y = host.buffer output 0 : memref<3x4xf32>
// CHECK-NEXT:   %[[S:.*]] = host.buffer output 1 : memref<3x4xf32>
// CHECK-NEXT:   host.launch @relu(%x, %h) : memref<3x4xf32>, memref<3x4xf32>
// CHECK-NEXT:   host.launch @relu(%h, %y) : memref<3x4xf32>, memref<3x4xf32>
// CHECK-NEXT:   host.launch @copy_1(%x, %[[S]]) : memref<3x4xf32>, memref<3x4xf32>
// CHECK-NEXT:   host.return
