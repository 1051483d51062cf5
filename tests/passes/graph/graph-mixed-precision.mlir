// RUN: treadle-opt %s -p graph-mixed-precision{precision=f16} | filecheck %s
// RUN: treadle-opt %s -p graph-mixed-precision{precision=tf32} | filecheck %s --check-prefix TF32
// RUN: treadle-opt %s -p graph-mixed-precision | filecheck %s --check-prefix OFF

func.func @main(%x: tensor<1x2xf32>) -> tensor<1x2xf32> {
  %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 0.1"> : tensor<2x2xf32>
  %m = graph.matmul %x, %w : (tensor<1x2xf32>, tensor<2x2xf32>) -> tensor<1x2xf32>
  %e = graph.unary "exp" %m : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %y = graph.matmul %e, %w : (tensor<1x2xf32>, tensor<2x2xf32>) -> tensor<1x2xf32>
  func.return %y : tensor<1x2xf32>
}

// CHECK:      [[X:%.*]] = graph.cast %x to f16
// CHECK:      [[W:%.*]] = graph.constant #graph.inline<"1.0, 2.0, 3.0, 0.0999755859375"> : tensor<2x2xf16>
// CHECK:      [[M:%.*]] = graph.matmul [[X]], [[W]] : (tensor<1x2xf16>, tensor<2x2xf16>) -> tensor<1x2xf16>
// CHECK-NEXT: [[F:%.*]] = graph.cast [[M]] to f32
// CHECK-NEXT: %e = graph.unary "exp" [[F]]
// CHECK-NEXT: [[E:%.*]] = graph.cast %e to f16
// CHECK:      [[Y:%.*]] = graph.matmul [[E]], [[W]]
// CHECK-NEXT: [[R:%.*]] = graph.cast [[Y]] to f32
// CHECK-NEXT: func.return [[R]]

// TF32: graph.matmul %x, %w {precision = "tf32"} : (tensor<1x2xf32>, tensor<2x2xf32>) -> tensor<1x2xf32>

// OFF: %m = graph.matmul %x, %w : (tensor<1x2xf32>, tensor<2x2xf32>) -> tensor<1x2xf32>
