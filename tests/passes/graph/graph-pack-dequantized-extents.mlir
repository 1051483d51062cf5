// RUN: treadle-opt %s -p graph-pack-dequantized{width=2} | filecheck %s

// Rows that are required up to an extent take packed numbers. A matrix that an extent is part of is not computed from
// constants alone, and stays.
func.func @main(%a: tensor<5x2xf32>, %len: tensor<i64>) -> (tensor<5x2xf32>, tensor<5x2xf32>)
    attributes {extents = ["len"], output_required = [#graph.required<d0 < 0>, #graph.required<>]} {
  %q = graph.constant #graph.inline<"100, 2, 3, 4"> : tensor<2x2xui8>
  %b = graph.compute "dequantize" (%k, %n) {
    %0 = graph.at %q[%n, %k] : tensor<2x2xui8>
    %1 = arith.uitofp %0 : ui8 to f32
    graph.yield %1 : f32
  } : tensor<2x2xf32>
  %c = graph.matmul %a, %b : (tensor<5x2xf32>, tensor<2x2xf32>) -> tensor<5x2xf32>
  %d = graph.compute "dequantize" (%k, %n) {
    %0 = graph.at %q[%n, %k] : tensor<2x2xui8>
    %1 = arith.uitofp %0 : ui8 to f32
    %2 = graph.at %len[] : tensor<i64>
    %3 = arith.sitofp %2 : i64 to f32
    %4 = arith.mulf %1, %3 : f32
    graph.yield %4 : f32
  } : tensor<2x2xf32>
  %e = graph.matmul %a, %d : (tensor<5x2xf32>, tensor<2x2xf32>) -> tensor<5x2xf32>
  func.return %c, %e : tensor<5x2xf32>, tensor<5x2xf32>
}

// CHECK:      output_required = [#graph.required<d0 < 0>, #graph.required<>]
// CHECK:      [[Q:%.*]] = graph.constant #graph.inline<"100, 2, 3, 4"> : tensor<2x2xui8>
// CHECK-NEXT: [[P:%.*]] = graph.constant #graph.inline<"100, 3, 2, 4"> : tensor<1x2x2xui8>
// CHECK-NEXT: %b = graph.compute "dequantize"
// CHECK:        graph.at [[P]]
// CHECK:      %d = graph.compute "dequantize"
// CHECK:        graph.at [[Q]]
