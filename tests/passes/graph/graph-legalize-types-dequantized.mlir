// RUN: treadle-opt %s -p 'graph-legalize-types{target="cpu{matrix_unit=amx}" operators=matmul}' | filecheck %s
// RUN: treadle-opt %s -p 'graph-legalize-types{operators=matmul}' | filecheck %s

// A matrix that is computed from constants is read before it is rounded, and kernels may round it; the sum is read before
// it is rounded, too. A matrix that the model computes from an input is the rounded one.
func.func @main(%x: tensor<8x4xbf16>, %z: tensor<4x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %q = graph.constant #graph.blob<"sha256:0000000000000000000000000000000000000000000000000000000000000000", 32> : tensor<4x8xui8>
  %s = graph.constant #graph.blob<"sha256:0000000000000000000000000000000000000000000000000000000000000000", 32> : tensor<8xf32>
  %w = graph.compute "dequantize" (%k, %n) {
    %0 = graph.at %q[%k, %n] : tensor<4x8xui8>
    %1 = arith.uitofp %0 : ui8 to f32
    %2 = graph.at %s[%n] : tensor<8xf32>
    %3 = arith.mulf %1, %2 : f32
    graph.yield %3 : f32
  } : tensor<4x8xf32>
  %r = graph.cast %w to bf16 : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %c = graph.matmul %x, %r : (tensor<8x4xbf16>, tensor<4x8xbf16>) -> tensor<8x8xbf16>
  %y = graph.cast %c to f32 : (tensor<8x8xbf16>) -> tensor<8x8xf32>
  %t = graph.cast %z to bf16 : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %d = graph.matmul %x, %t : (tensor<8x4xbf16>, tensor<4x8xbf16>) -> tensor<8x8xbf16>
  %v = graph.cast %d to f32 : (tensor<8x8xbf16>) -> tensor<8x8xf32>
  func.return %y, %v : tensor<8x8xf32>, tensor<8x8xf32>
}

// CHECK:      [[W:%\S+]] = graph.compute "dequantize"
// CHECK:      [[X:%\S+]] = graph.cast %x to f32
// CHECK-NEXT: [[C:%\S+]] = graph.matmul [[X]], [[W]] {precision = "bf16"}
// CHECK:      [[T:%\S+]] = graph.cast %z to bf16
// CHECK:      [[U:%\S+]] = graph.cast [[T]] to f32
// CHECK-NEXT: [[D:%\S+]] = graph.matmul {{%\S+}}, [[U]] :
// CHECK-NEXT: [[E:%\S+]] = graph.cast [[D]] to bf16
// CHECK-NEXT: [[V:%\S+]] = graph.cast [[E]] to f32
// CHECK-NEXT: func.return [[C]], [[V]]
