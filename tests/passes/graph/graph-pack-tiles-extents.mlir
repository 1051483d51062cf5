// RUN: treadle-opt %s -p 'graph-pack-tiles{target="cpu{matrix_unit=amx}"}' | filecheck %s

// A masked operand is one like any. A mask of the result takes it rounded: readers behind it do not take the sum.
func.func @main(%a: tensor<4x3xbf16>, %n: tensor<i64>) -> tensor<4x2xf32>
    attributes {extents = ["n"], output_required = [#graph.required<>]} {
  %w = graph.constant #graph.inline<"1.0, 2.0, 3.0, 4.0, 5.0, 6.0"> : tensor<3x2xbf16>
  %m = graph.mask %a below %n {dim = 0 : i64, fill = 0.0 : bf16} : (tensor<4x3xbf16>, tensor<i64>) -> tensor<4x3xbf16>
  %x = graph.matmul %m, %w : (tensor<4x3xbf16>, tensor<3x2xbf16>) -> tensor<4x2xbf16>
  %k = graph.mask %x below %n {dim = 0 : i64, fill = 0.0 : bf16} : (tensor<4x2xbf16>, tensor<i64>) -> tensor<4x2xbf16>
  %y = graph.cast %k to f32 : (tensor<4x2xbf16>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// CHECK:      %m = graph.mask %a below %n {dim = 0 : i64, fill = 0.000000e+00 : bf16}
// CHECK:      [[S:%\S+]] = graph.packed_matmul %m, %w {columns = 2 : i64} {{.*}} -> tensor<4x2xf32>
// CHECK-NEXT: [[R:%\S+]] = graph.cast [[S]] to bf16
// CHECK-NEXT: %k = graph.mask [[R]] below %n {dim = 0 : i64, fill = 0.000000e+00 : bf16}
