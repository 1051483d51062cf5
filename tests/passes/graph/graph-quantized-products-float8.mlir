// RUN: treadle-opt %s -p 'graph-quantized-products{target="sm_90a{multiprocessors=1}" precision=bf16}' | filecheck %s
// RUN: treadle-opt %s -p 'graph-quantized-products{target=sm_90a precision=bf16}' | filecheck %s --check-prefix=FEW
// RUN: treadle-opt %s -p 'graph-quantized-products{target="sm_90a{multiprocessors=1}"}' | filecheck %s --check-prefix=EXACT
// RUN: treadle-opt %s -p 'graph-quantized-products{target=sm_80 precision=bf16}' | filecheck %s --check-prefix=WIDE

// What was dequantised from floats of 8 bits is multiplied so, where one of bf16 would do; not with so few tiles that a
// product of bf16 is faster.
func.func @main(%x: tensor<256x64xf8E4M3FN>, %w: tensor<192x64xf8E5M2>) -> tensor<256x192xf32> {
  %s = graph.constant #graph.inline<"0.5"> : tensor<f32>
  %zero = graph.constant #graph.inline<"0.0"> : tensor<f32>
  %t = graph.constant #graph.inline<"0.25"> : tensor<f32>
  %q = graph.transpose %w {perm = array<i64: 1, 0>} : (tensor<192x64xf8E5M2>) -> tensor<64x192xf8E5M2>
  %a = graph.cast %x to f32 : (tensor<256x64xf8E4M3FN>) -> tensor<256x64xf32>
  %b = graph.binary "sub" %a, %zero : (tensor<256x64xf32>, tensor<f32>) -> tensor<256x64xf32>
  %c = graph.binary "mul" %b, %s : (tensor<256x64xf32>, tensor<f32>) -> tensor<256x64xf32>
  %d = graph.cast %q to f32 : (tensor<64x192xf8E5M2>) -> tensor<64x192xf32>
  %e = graph.binary "mul" %d, %t : (tensor<64x192xf32>, tensor<f32>) -> tensor<64x192xf32>
  %y = graph.matmul %c, %e : (tensor<256x64xf32>, tensor<64x192xf32>) -> tensor<256x192xf32>
  func.return %y : tensor<256x192xf32>
}

// CHECK-LABEL: @main
// CHECK:      [[P:%\S+]] = graph.matmul %x, %q {sums = f32, precision = "bf16"}
// CHECK:      %y = graph.binary "mul" [[P]], {{%\S+}}
// FEW-LABEL:  @main
// FEW:        %y = graph.matmul %c, %e :
// EXACT-LABEL: @main
// EXACT:      %y = graph.matmul %c, %e :
// WIDE-LABEL: @main
// WIDE:       %y = graph.matmul %c, %e :

// A model's own product of floats of 8 bits stays with any precision; without tensor cores for it, and where an operand
// lies across the terms, it is one of f32.
func.func @given(%x: tensor<32x64xf8E4M3FN>, %w: tensor<48x64xf8E4M3FN>, %v: tensor<64x48xf8E4M3FN>)
    -> (tensor<32x48xf32>, tensor<32x48xf32>) {
  %t = graph.transpose %w {perm = array<i64: 1, 0>} : (tensor<48x64xf8E4M3FN>) -> tensor<64x48xf8E4M3FN>
  %y = graph.matmul %x, %t {sums = f32} : (tensor<32x64xf8E4M3FN>, tensor<64x48xf8E4M3FN>) -> tensor<32x48xf32>
  %z = graph.matmul %x, %v {sums = f32} : (tensor<32x64xf8E4M3FN>, tensor<64x48xf8E4M3FN>) -> tensor<32x48xf32>
  func.return %y, %z : tensor<32x48xf32>, tensor<32x48xf32>
}

// EXACT-LABEL: @given
// EXACT:      %y = graph.matmul %x, %t {sums = f32}
// EXACT:      %z = graph.matmul {{%\S+}}, {{%\S+}} : (tensor<32x64xf32>, tensor<64x48xf32>)
// WIDE-LABEL: @given
// WIDE:       %y = graph.matmul {{%\S+}}, {{%\S+}} : (tensor<32x64xf32>, tensor<64x48xf32>)
// WIDE:       %z = graph.matmul {{%\S+}}, {{%\S+}} : (tensor<32x64xf32>, tensor<64x48xf32>)
