// RUN: treadle-opt %s -p graph-mixed-precision{precision=bf16} | filecheck %s

// A matrix that is stored in the narrow type is not widened and rounded again; one that is transposed on its way is.

func.func @main(%x: tensor<1x2xf32>, %u: tensor<2x3xbf16>) -> tensor<1x3xf32> {
  %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 0.5"> : tensor<2x2xbf16>
  %v = graph.compute "dequantize" (%k, %n) {
    %a = graph.at %w[%k, %n] : tensor<2x2xbf16>
    %b = arith.extf %a : bf16 to f32
    graph.yield %b : f32
  } : tensor<2x2xf32>
  %t = graph.compute "dequantize" (%k, %n) {
    %a = graph.at %w[%n, %k] : tensor<2x2xbf16>
    %b = arith.extf %a : bf16 to f32
    graph.yield %b : f32
  } : tensor<2x2xf32>
  %z = graph.cast %u to f32 : (tensor<2x3xbf16>) -> tensor<2x3xf32>
  %m = graph.matmul %x, %v : (tensor<1x2xf32>, tensor<2x2xf32>) -> tensor<1x2xf32>
  %n = graph.matmul %m, %t : (tensor<1x2xf32>, tensor<2x2xf32>) -> tensor<1x2xf32>
  %y = graph.matmul %n, %z : (tensor<1x2xf32>, tensor<2x3xf32>) -> tensor<1x3xf32>
  func.return %y : tensor<1x3xf32>
}

// CHECK:      %t = graph.compute "dequantize"
// CHECK:      [[T:%.*]] = graph.cast %t to bf16
// CHECK:      graph.matmul {{%.*}}, %w : (tensor<1x2xbf16>, tensor<2x2xbf16>)
// CHECK:      graph.matmul {{%.*}}, [[T]] : (tensor<1x2xbf16>, tensor<2x2xbf16>)
// CHECK:      graph.matmul {{%.*}}, %u : (tensor<1x2xbf16>, tensor<2x3xbf16>)
