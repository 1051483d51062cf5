// RUN: treadle-opt %s -p graph-pack-dequantized{width=2} --split-input-file | filecheck %s

// Numbers below 16 of three columns: two panels of two, and two numbers of a block in a byte, the first one below. The
// scales are in panels, too; the zero point, which no column moves, stays.
func.func @main(%a: tensor<1x4xf32>) -> tensor<1x3xf32> {
  %q = graph.constant #graph.inline<"1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"> : tensor<3x2x2xui8>
  %s = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0, 5.0, 6.0"> : tensor<3x2xf32>
  %z = graph.constant #graph.inline<"8, 7"> : tensor<2xi32>
  %b = graph.compute "dequantize" (%k, %n) {
    %c2 = arith.constant 2 : index
    %block = arith.divui %k, %c2 : index
    %place = arith.remui %k, %c2 : index
    %0 = graph.at %q[%n, %block, %place] : tensor<3x2x2xui8>
    %1 = arith.extui %0 : ui8 to i32
    %2 = graph.at %z[%block] : tensor<2xi32>
    %3 = arith.subi %1, %2 : i32
    %4 = arith.sitofp %3 : i32 to f32
    %5 = graph.at %s[%n, %block] : tensor<3x2xf32>
    %6 = arith.mulf %4, %5 : f32
    graph.yield %6 : f32
  } : tensor<4x3xf32>
  %c = graph.matmul %a, %b : (tensor<1x4xf32>, tensor<4x3xf32>) -> tensor<1x3xf32>
  func.return %c : tensor<1x3xf32>
}

// CHECK:      [[Q:%.*]] = graph.constant #graph.inline<"33, 101, 67, 135, 169, 0, 203, 0"> : tensor<2x2x1x2xui8>
// CHECK-NEXT: [[S:%.*]] = graph.constant #graph.inline<"1.0, 3.0, 2.0, 4.0, 5.0, 0.0, 6.0, 0.0"> : tensor<2x2x2xf32>
// CHECK-NEXT: %z = graph.constant
// CHECK-NEXT: %b = graph.compute "dequantize"
// CHECK:        [[B:%.*]] = graph.at [[Q]]
// CHECK-NEXT:   [[W:%.*]] = arith.extui [[B]] : ui8 to i32
// CHECK:        [[R:%.*]] = arith.shrsi [[W]]
// CHECK-NEXT:   arith.andi [[R]]
// CHECK:        graph.at %z
// CHECK:        graph.at [[S]]
// CHECK:      } : tensor<4x3xf32>
// CHECK-NEXT: graph.matmul %a, %b

// -----

// Signed bytes between -8 and 7 are stored with 8 more, and what is read out of a byte is less 8.
func.func @main(%a: tensor<1x4xf32>) -> tensor<1x2xf32> {
  %q = graph.constant #graph.inline<"-8, 7, 0, 1, 2, -3, -4, 5"> : tensor<2x4xi8>
  %b = graph.compute "dequantize" (%k, %n) {
    %0 = graph.at %q[%n, %k] : tensor<2x4xi8>
    %1 = arith.sitofp %0 : i8 to f32
    graph.yield %1 : f32
  } : tensor<4x2xf32>
  %c = graph.matmul %a, %b : (tensor<1x4xf32>, tensor<4x2xf32>) -> tensor<1x2xf32>
  func.return %c : tensor<1x2xf32>
}

// CHECK:      [[Q:%.*]] = graph.constant #graph.inline<"240, 90, 152, 212"> : tensor<1x2x2xui8>
// CHECK:        [[B:%.*]] = graph.at [[Q]]
// CHECK-NEXT:   [[W:%.*]] = arith.extui [[B]] : ui8 to i32
// CHECK:        [[R:%.*]] = arith.shrsi [[W]]
// CHECK-NEXT:   [[N:%.*]] = arith.andi [[R]]
// CHECK-NEXT:   [[C8:%.*]] = arith.constant 8 : i32
// CHECK-NEXT:   [[S:%.*]] = arith.subi [[N]], [[C8]]
// CHECK-NEXT:   arith.sitofp [[S]] : i32 to f32
