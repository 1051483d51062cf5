// RUN: treadle-opt %s -p 'graph-quantized-products{target=sm_80}' | filecheck %s
// RUN: treadle-opt %s -p 'graph-quantized-products{target="sm_80{peak_int8_tensor=0}"}' | filecheck %s --check-prefix=FLOATS
// RUN: treadle-opt %s -p 'graph-quantized-products{target="cpu{matrix_unit=amx}"}' | filecheck %s --check-prefix=FLOATS

// Tensor cores take right operands that are computed, too.
func.func @main(%q: tensor<2x4x3xui8>, %r: tensor<2x3x5xi8>) -> tensor<2x4x5xf32> {
  %s = graph.constant #graph.inline<"0.5"> : tensor<f32>
  %t = graph.constant #graph.inline<"0.25"> : tensor<f32>
  %z = graph.constant #graph.inline<"128"> : tensor<i32>
  %x0 = graph.cast %q to i32 : (tensor<2x4x3xui8>) -> tensor<2x4x3xi32>
  %x1 = graph.binary "sub" %x0, %z : (tensor<2x4x3xi32>, tensor<i32>) -> tensor<2x4x3xi32>
  %x2 = graph.cast %x1 to f32 : (tensor<2x4x3xi32>) -> tensor<2x4x3xf32>
  %x = graph.binary "mul" %x2, %s : (tensor<2x4x3xf32>, tensor<f32>) -> tensor<2x4x3xf32>
  %w0 = graph.cast %r to i32 : (tensor<2x3x5xi8>) -> tensor<2x3x5xi32>
  %w1 = graph.cast %w0 to f32 : (tensor<2x3x5xi32>) -> tensor<2x3x5xf32>
  %w = graph.binary "mul" %w1, %t : (tensor<2x3x5xf32>, tensor<f32>) -> tensor<2x3x5xf32>
  %y = graph.matmul %x, %w : (tensor<2x4x3xf32>, tensor<2x3x5xf32>) -> tensor<2x4x5xf32>
  func.return %y : tensor<2x4x5xf32>
}

// CHECK:      [[C:%\S+]] = graph.matmul %x1, %w0 : (tensor<2x4x3xi32>, tensor<2x3x5xi32>) -> tensor<2x4x5xi32>
// CHECK-NEXT: [[F:%\S+]] = graph.cast [[C]] to f32
// CHECK:      %y = graph.binary "mul" [[F]], {{%\S+}}

// FLOATS: %y = graph.matmul %x, %w : (tensor<2x4x3xf32>, tensor<2x3x5xf32>)
