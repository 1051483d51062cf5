// RUN: treadle-opt %s -p 'graph-multiply-bytes{target=sm_80}' | filecheck %s

// A mask of a result stands behind what zero points add. One of an operand, as a sum over a dimension that changes has
// it, leaves the product as it is: what is below the mask is no difference of bytes.
func.func @main(%q: tensor<4x2xi8>, %n: tensor<i64>) -> (tensor<4x3xi32>, tensor<4x3xi32>)
    attributes {extents = ["n"], output_required = [#graph.required<d0 < 0>, #graph.required<d0 < 0>]} {
  %z = graph.constant #graph.inline<"7"> : tensor<i32>
  %w = graph.constant #graph.inline<"1, -2, 3, 4, -5, 6"> : tensor<2x3xi32>
  %wide = graph.cast %q to i32 : (tensor<4x2xi8>) -> tensor<4x2xi32>
  %x = graph.binary "sub" %wide, %z : (tensor<4x2xi32>, tensor<i32>) -> tensor<4x2xi32>
  %y = graph.matmul %x, %w : (tensor<4x2xi32>, tensor<2x3xi32>) -> tensor<4x3xi32>
  %m = graph.mask %x below %n {dim = 1 : i64, fill = 0 : i32} : (tensor<4x2xi32>, tensor<i64>) -> tensor<4x2xi32>
  %p = graph.matmul %m, %w : (tensor<4x2xi32>, tensor<2x3xi32>) -> tensor<4x3xi32>
  %r = graph.mask %y below %n {dim = 0 : i64, fill = 0 : i32} : (tensor<4x3xi32>, tensor<i64>) -> tensor<4x3xi32>
  func.return %r, %p : tensor<4x3xi32>, tensor<4x3xi32>
}

// CHECK:      output_required = [#graph.required<d0 < 0>, #graph.required<d0 < 0>]
// CHECK:      [[S:%\S+]] = graph.matmul %q, {{%\S+}} {sums = i32} : (tensor<4x2xi8>, tensor<2x3xi8>) -> tensor<4x3xi32>
// CHECK:      [[Y:%\S+]] = graph.binary "sub" [[S]]
// CHECK-NEXT: %m = graph.mask %x below %n {dim = 1 : i64
// CHECK-NEXT: %p = graph.matmul %m, %w : (tensor<4x2xi32>
// CHECK-NEXT: %r = graph.mask [[Y]] below %n {dim = 0 : i64
// CHECK-NEXT: func.return %r, %p
