// RUN: treadle-opt %s -p graph-widen-matmuls | filecheck %s

// The masks of a sum over a dimension that changes stay in the type that is stored, before the casts.
func.func @main(%a: tensor<8x4xbf16>, %b: tensor<4x8xbf16>, %n: tensor<i64>) -> tensor<8x8xbf16>
    attributes {extents = ["n"], output_required = [#graph.required<>]} {
  %m = graph.mask %a below %n {dim = 1 : i64, fill = 0.0 : bf16} : (tensor<8x4xbf16>, tensor<i64>) -> tensor<8x4xbf16>
  %k = graph.mask %b below %n {dim = 0 : i64, fill = 0.0 : bf16} : (tensor<4x8xbf16>, tensor<i64>) -> tensor<4x8xbf16>
  %y = graph.matmul %m, %k : (tensor<8x4xbf16>, tensor<4x8xbf16>) -> tensor<8x8xbf16>
  func.return %y : tensor<8x8xbf16>
}

// CHECK:      %m = graph.mask %a below %n {dim = 1 : i64, fill = 0.000000e+00 : bf16}
// CHECK-NEXT: %k = graph.mask %b below %n {dim = 0 : i64, fill = 0.000000e+00 : bf16}
// CHECK-NEXT: [[A:%\S+]] = graph.cast %m to f32
// CHECK-NEXT: [[B:%\S+]] = graph.cast %k to f32
// CHECK-NEXT: [[M:%\S+]] = graph.matmul [[A]], [[B]]
// CHECK-NEXT: %y = graph.cast [[M]] to bf16
