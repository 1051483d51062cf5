// RUN: treadle-opt %s -p graph-deduplicate | filecheck %s

// Equal masks below one extent are one; of another extent, dimension or number they are not.
func.func @main(%x: tensor<16x16xf32>, %n: tensor<i64>, %m: tensor<i64>)
    -> (tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>)
    attributes {extents = ["n", "m"]} {
  %a = graph.mask %x below %n {dim = 1 : i64, fill = 0.0 : f32} : (tensor<16x16xf32>, tensor<i64>) -> tensor<16x16xf32>
  %b = graph.mask %x below %n {dim = 1 : i64, fill = 0.0 : f32} : (tensor<16x16xf32>, tensor<i64>) -> tensor<16x16xf32>
  %c = graph.mask %x below %m {dim = 1 : i64, fill = 0.0 : f32} : (tensor<16x16xf32>, tensor<i64>) -> tensor<16x16xf32>
  %d = graph.mask %x below %n {dim = 0 : i64, fill = 0.0 : f32} : (tensor<16x16xf32>, tensor<i64>) -> tensor<16x16xf32>
  %e = graph.mask %x below %n {dim = 1 : i64, fill = 1.0 : f32} : (tensor<16x16xf32>, tensor<i64>) -> tensor<16x16xf32>
  func.return %a, %b, %c, %d, %e
      : tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>
}

// CHECK-COUNT-4: graph.mask
// CHECK-NOT:     graph.mask
// CHECK:         func.return %a, %a, %c, %d, %e
