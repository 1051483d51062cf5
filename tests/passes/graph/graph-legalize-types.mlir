// RUN: treadle-opt %s -p graph-legalize-types | filecheck %s
// RUN: treadle-opt %s -p graph-legalize-types{operators=matmul} | filecheck %s
// RUN: treadle-opt %s -p graph-legalize-types{operators=conv,pool} | filecheck %s --check-prefix=OTHERS

func.func @main(%a: tensor<8x4xbf16>, %b: tensor<4x8xbf16>, %c: tensor<8x8xf32>) -> (tensor<8x8xbf16>, tensor<8x8xf32>) {
  %y = graph.matmul %a, %b : (tensor<8x4xbf16>, tensor<4x8xbf16>) -> tensor<8x8xbf16>
  %z = graph.matmul %c, %c : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %y, %z : tensor<8x8xbf16>, tensor<8x8xf32>
}
// CHECK:      [[A:%.*]] = graph.cast %a to f32
// CHECK-NEXT: [[B:%.*]] = graph.cast %b to f32
// CHECK-NEXT: [[M:%.*]] = graph.matmul [[A]], [[B]] : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
// CHECK-NEXT: %y = graph.cast [[M]] to bf16
// CHECK-NEXT: %z = graph.matmul %c, %c : (tensor<8x8xf32>

// OTHERS: %y = graph.matmul %a, %b : (tensor<8x4xbf16>, tensor<4x8xbf16>) -> tensor<8x8xbf16>
