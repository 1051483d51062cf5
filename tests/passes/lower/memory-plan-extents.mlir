// RUN: treadle-opt %s -p memory-plan | filecheck %s

// An extent is an input like any, which launches and dispatches read; buffers have the largest shape. What @main says
// of symbols, extents and required regions stays.
func.func @main(%x: tensor<8xf32>, %n: tensor<i64>) -> tensor<8xf32>
    attributes {symbols = ["n:1..8"], input_names = ["x"], output_names = ["y"], input_extents = [["n"]], extents = ["n"],
                output_extents = [["n"]], output_required = [#graph.required<d0 < 0>]} {
  %h = loop.kernel @first ins(%A = %x : tensor<8xf32>, %N = %n : tensor<i64>) outs(%C : tensor<8xf32>) grid(%b in 1) threads(%t in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %read = memref.load %N[] : memref<i64>
    %end = arith.index_cast %read : i64 to index
    scf.for %i = %c0 to %end step %c1 {
      %v = memref.load %A[%i] : memref<8xf32>
      memref.store %v, %C[%i] : memref<8xf32>
    }
  }
  %y = loop.dispatch #schedule.tree<e0 <= 4 ? 0 : 1> (%n : tensor<i64>) {
    %a = loop.kernel @few ins(%A = %h : tensor<8xf32>) outs(%C : tensor<8xf32>) grid(%b in 1) threads(%t in 4) {
      %v = memref.load %A[%t] : memref<8xf32>
      memref.store %v, %C[%t] : memref<8xf32>
    }
    %c = loop.kernel @many ins(%A = %h : tensor<8xf32>) outs(%C : tensor<8xf32>) grid(%b in 2) threads(%t in 4) {
      %v = memref.load %A[%t] : memref<8xf32>
      memref.store %v, %C[%t] : memref<8xf32>
    }
  } : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// CHECK:      func.func @main() attributes {symbols = ["n:1..8"], {{.*}} input_extents = {{\[\[}}"n"]], extents = ["n"],
// CHECK-SAME:     output_required = [#graph.required<d0 < 0>], arena_bytes = 64 : i64, input_types = [tensor<8xf32>, tensor<i64>]
// CHECK-NEXT:   %x = host.buffer input 0 : memref<8xf32>
// CHECK-NEXT:   %n = host.buffer input 1 : memref<i64>
// CHECK-NEXT:   %h = host.buffer arena 0 : memref<8xf32>
// CHECK-NEXT:   %y = host.buffer output 0 : memref<8xf32>
// CHECK-NEXT:   host.launch @first(%x, %n, %h)
// CHECK-NEXT:   host.dispatch #schedule.tree<e0 <= 4 ? 0 : 1> (%n : memref<i64>) {
// CHECK-NEXT:     host.launch @few(%h, %y)
// CHECK-NEXT:     host.launch @many(%h, %y)
