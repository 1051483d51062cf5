// RUN: treadle-opt %s -p graph-pack-dequantized{by-columns=true} | filecheck %s

// Numbers below 16 of three columns lie by columns, two neighbours along the terms in a byte, the first one below. Scales
// get the column first, and zero points of i32 become numbers of 4 bits.
func.func @main(%a: tensor<1x4xf32>) -> tensor<1x3xf32> {
  %q = graph.constant #graph.inline<"1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"> : tensor<4x3xui8>
  %s = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0, 5.0, 6.0"> : tensor<2x3xf32>
  %z = graph.constant #graph.inline<"8, 7, 6, 5, 4, 3"> : tensor<3x2xi32>
  %c = graph.fused "product" {
    %b = graph.compute "dequantize" (%k, %n) {
      %c2 = arith.constant 2 : index
      %block = arith.divui %k, %c2 : index
      %0 = graph.at %q[%k, %n] : tensor<4x3xui8>
      %1 = arith.extui %0 : ui8 to i32
      %2 = graph.at %z[%n, %block] : tensor<3x2xi32>
      %3 = arith.subi %1, %2 : i32
      %4 = arith.sitofp %3 : i32 to f32
      %5 = graph.at %s[%block, %n] : tensor<2x3xf32>
      %6 = arith.mulf %4, %5 : f32
      graph.yield %6 : f32
    } : tensor<4x3xf32>
    %d = graph.matmul %a, %b : (tensor<1x4xf32>, tensor<4x3xf32>) -> tensor<1x3xf32>
    graph.yield %d : tensor<1x3xf32>
  } : tensor<1x3xf32>
  func.return %c : tensor<1x3xf32>
}

// CHECK-DAG:  [[Q:%.*]] = graph.constant #graph.inline<"65, 167, 82, 184, 99, 201"> : tensor<3x2xui8>
// CHECK-DAG:  [[S:%.*]] = graph.constant #graph.inline<"1.0, 4.0, 2.0, 5.0, 3.0, 6.0"> : tensor<3x2xf32>
// CHECK-DAG:  [[Z:%.*]] = graph.constant #graph.inline<"120, 86, 52"> : tensor<3x1xui8>
// CHECK:      graph.compute "dequantize"
// CHECK:        graph.at [[Q]]
// CHECK:        graph.at [[Z]]
// CHECK:        graph.at [[S]]
// CHECK:      graph.matmul

// A matrix that another kernel stores is written by rows: its constants stay.
func.func @apart(%a: tensor<1x4xf32>) -> tensor<1x3xf32> {
  %q = graph.constant #graph.inline<"1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"> : tensor<4x3xui8>
  %b = graph.compute "dequantize" (%k, %n) {
    %0 = graph.at %q[%k, %n] : tensor<4x3xui8>
    %1 = arith.uitofp %0 : ui8 to f32
    graph.yield %1 : f32
  } : tensor<4x3xf32>
  %f = graph.fused "product" {
    %d = graph.matmul %a, %b : (tensor<1x4xf32>, tensor<4x3xf32>) -> tensor<1x3xf32>
    graph.yield %d : tensor<1x3xf32>
  } : tensor<1x3xf32>
  func.return %f : tensor<1x3xf32>
}

// CHECK-LABEL: @apart
// CHECK-NEXT:    graph.constant #graph.inline<"1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"> : tensor<4x3xui8>
