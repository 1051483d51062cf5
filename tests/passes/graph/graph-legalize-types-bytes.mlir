// RUN: treadle-opt %s -p 'graph-legalize-types{target="cpu{matrix_unit=amx}"}' | filecheck %s
// RUN: treadle-opt %s -p 'graph-legalize-types{target="cpu{matrix_unit=vnni}"}' | filecheck %s
// RUN: treadle-opt %s -p graph-legalize-types | filecheck %s --check-prefix=NONE

// Of bytes by constants, products on the unit; of others, and of groups, convolutions of floats.
func.func @main(%q: tensor<1x2x4x4xi8>, %v: tensor<2x2x1x1xi32>) -> (tensor<1x2x4x4xi32>, tensor<1x2x4x4xi32>, tensor<1x2x4x4xi32>) {
  %w = graph.constant #graph.inline<"1, -2, 3, 4"> : tensor<2x2x1x1xi32>
  %g = graph.constant #graph.inline<"1, -2"> : tensor<2x1x1x1xi32>
  %x = graph.cast %q to i32 : (tensor<1x2x4x4xi8>) -> tensor<1x2x4x4xi32>
  %a = graph.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x2x4x4xi32>, tensor<2x2x1x1xi32>) -> tensor<1x2x4x4xi32>
  %b = graph.conv %x, %v {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x2x4x4xi32>, tensor<2x2x1x1xi32>) -> tensor<1x2x4x4xi32>
  %c = graph.conv %x, %g {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x2x4x4xi32>, tensor<2x1x1x1xi32>) -> tensor<1x2x4x4xi32>
  func.return %a, %b, %c : tensor<1x2x4x4xi32>, tensor<1x2x4x4xi32>, tensor<1x2x4x4xi32>
}

// CHECK:      %a = graph.conv %x, %w {{.*}} : (tensor<1x2x4x4xi32>
// CHECK-NEXT: [[X:%\S+]] = graph.cast %x to f64
// CHECK-NEXT: [[V:%\S+]] = graph.cast %v to f64
// CHECK-NEXT: [[B:%\S+]] = graph.conv [[X]], [[V]] {{.*}} : (tensor<1x2x4x4xf64>, tensor<2x2x1x1xf64>) -> tensor<1x2x4x4xf64>
// CHECK-NEXT: {{%b\S*}} = graph.cast [[B]] to i32
// CHECK:      graph.conv {{.*}}groups = 2 : i64} : (tensor<1x2x4x4xf64>
// CHECK-NEXT: {{%c\S*}} = graph.cast

// NONE-NOT: graph.conv {{.*}}xi32>)
