// RUN: treadle-opt %s -p graph-drop-empty | filecheck %s

// What has no elements is a constant; a product over no terms is 0; a read that can only be outside is the border.

func.func @main(%a: tensor<3x0xf32>, %b: tensor<0x5xf32>) -> (tensor<3x5xf32>, tensor<3x0xf32>, tensor<3x2xf32>) {
  %c = graph.matmul %a, %b : (tensor<3x0xf32>, tensor<0x5xf32>) -> tensor<3x5xf32>
  %r = graph.unary "relu" %a : (tensor<3x0xf32>) -> tensor<3x0xf32>
  %e = graph.unary "exp" %r : (tensor<3x0xf32>) -> tensor<3x0xf32>
  %v = graph.constant #graph.inline<"7.0"> : tensor<f32>
  %p = graph.pad "constant" %e, %v {pads = array<i64: 0, 1, 0, 1>} : (tensor<3x0xf32>, tensor<f32>) -> tensor<3x2xf32>
  func.return %c, %e, %p : tensor<3x5xf32>, tensor<3x0xf32>, tensor<3x2xf32>
}

// CHECK-LABEL: func.func @main
// CHECK-NEXT:    %c = graph.compute "matmul"
// CHECK-NEXT:      [[ZERO:%[0-9]+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:      graph.yield [[ZERO]] : f32
// CHECK-NEXT:    } : tensor<3x5xf32>
// CHECK-NEXT:    %e = graph.constant #graph.inline<""> : tensor<3x0xf32>
// CHECK-NEXT:    %v = graph.constant
// CHECK-NEXT:    %p = graph.compute "pad"
// CHECK-NEXT:      [[BORDER:%[0-9]+]] = graph.at %v[] : tensor<f32>
// CHECK-NEXT:      graph.yield [[BORDER]] : f32
// CHECK-NEXT:    } : tensor<3x2xf32>
// CHECK-NEXT:    func.return %c, %e, %p

// Extents of 1 and more stay as they are.

func.func @full(%a: tensor<3x1xf32>) -> tensor<3x1xf32> {
  %r = graph.unary "relu" %a : (tensor<3x1xf32>) -> tensor<3x1xf32>
  func.return %r : tensor<3x1xf32>
}

// CHECK-LABEL: func.func @full
// CHECK-NEXT:    %r = graph.unary "relu" %a
// CHECK-NEXT:    func.return %r
