// RUN: treadle-opt %s -p graph-quantize-weights{weights=int4} | filecheck %s
// RUN: treadle-opt %s -p graph-quantize-weights{weights=int8} | filecheck %s --check-prefix BYTES
// RUN: treadle-opt %s -p graph-quantize-weights{weights=bf16} | filecheck %s --check-prefix NARROW

// A tied table: the product gets numbers and scales of 40 rows, of which the last block has 8, and the gather keeps the
// floats. What the model has quantised itself stays, and so does a small matrix.
func.func @main(%a: tensor<3x40xf32>, %i: tensor<2xi64>)
    -> (tensor<3x64xf32>, tensor<2x40xf32>, tensor<3x64xf32>, tensor<3x2xf32>) {
  %one = graph.constant #graph.inline<"1.0"> : tensor<f32>
  %table = graph.broadcast %one {shape = array<i64: 64, 40>} : (tensor<f32>) -> tensor<64x40xf32>
  %w = graph.transpose %table {perm = array<i64: 1, 0>} : (tensor<64x40xf32>) -> tensor<40x64xf32>
  %c = graph.matmul %a, %w : (tensor<3x40xf32>, tensor<40x64xf32>) -> tensor<3x64xf32>
  %g = graph.gather %table, %i {dim = 0 : i64} : (tensor<64x40xf32>, tensor<2xi64>) -> tensor<2x40xf32>
  %byte = graph.constant #graph.inline<"7"> : tensor<i8>
  %bytes = graph.broadcast %byte {shape = array<i64: 40, 64>} : (tensor<i8>) -> tensor<40x64xi8>
  %own = graph.cast %bytes to f32 : (tensor<40x64xi8>) -> tensor<40x64xf32>
  %d = graph.matmul %a, %own : (tensor<3x40xf32>, tensor<40x64xf32>) -> tensor<3x64xf32>
  %small = graph.broadcast %one {shape = array<i64: 40, 2>} : (tensor<f32>) -> tensor<40x2xf32>
  %e = graph.matmul %a, %small : (tensor<3x40xf32>, tensor<40x2xf32>) -> tensor<3x2xf32>
  func.return %c, %g, %d, %e : tensor<3x64xf32>, tensor<2x40xf32>, tensor<3x64xf32>, tensor<3x2xf32>
}

// CHECK:      attributes {treadle.weights = {kind = "int4", block = "32", matrices = "1", bytes_before = "10240", bytes = "1536"
// CHECK:      %table = graph.broadcast %one
// CHECK-NEXT: [[Q:%.*]] = graph.constant {{.*}} : tensor<20x64xui8>
// CHECK-NEXT: [[S:%.*]] = graph.constant {{.*}} : tensor<2x64xbf16>
// CHECK-NEXT: %w = graph.compute "dequantize"
// CHECK:        graph.at [[Q]]
// CHECK:        arith.shrsi
// CHECK:        graph.at [[S]]
// CHECK:      } : tensor<40x64xf32>
// CHECK-NEXT: %c = graph.matmul %a, %w
// CHECK-NEXT: graph.gather %table
// CHECK:      %own = graph.cast
// CHECK-NEXT: graph.matmul %a, %own
// CHECK-NEXT: %small = graph.broadcast
// CHECK-NEXT: graph.matmul %a, %small

// BYTES:      bytes = "2816", rms_error = "6.1e-05"
// BYTES:      [[Q:%.*]] = graph.constant {{.*}} : tensor<40x64xi8>
// BYTES:        graph.at [[Q]]
// BYTES-NEXT:   arith.extsi

// NARROW:      kind = "bf16", matrices = "1", bytes_before = "10240", bytes = "5120", rms_error = "0"
// NARROW:      [[Q:%.*]] = graph.constant {{.*}} : tensor<40x64xbf16>
// NARROW:        graph.at [[Q]]
// NARROW-NEXT:   arith.extf
