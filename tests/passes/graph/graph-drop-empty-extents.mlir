// RUN: treadle-opt %s -p graph-drop-empty | filecheck %s

// A mask of a tensor without elements goes with it, and the extent stays an argument; of others, masks stay.
func.func @main(%x: tensor<4x0xf32>, %y: tensor<4x8xf32>, %n: tensor<i64>) -> (tensor<4x0xf32>, tensor<4x8xf32>)
    attributes {extents = ["n"], output_required = [#graph.required<d0 < 0>, #graph.required<d0 < 0>]} {
  %a = graph.mask %x below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<4x0xf32>, tensor<i64>) -> tensor<4x0xf32>
  %b = graph.mask %y below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<4x8xf32>, tensor<i64>) -> tensor<4x8xf32>
  func.return %a, %b : tensor<4x0xf32>, tensor<4x8xf32>
}

// CHECK:      func.func @main({{.*}}, %n: tensor<i64>)
// CHECK-SAME:     attributes {extents = ["n"], output_required = [#graph.required<d0 < 0>, #graph.required<d0 < 0>]} {
// CHECK-NEXT: %a = graph.constant #graph.inline<""> : tensor<4x0xf32>
// CHECK-NEXT: %b = graph.mask %y below %n
// CHECK-NEXT: func.return %a, %b
