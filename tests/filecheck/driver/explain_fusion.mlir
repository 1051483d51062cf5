// RUN: treadle-opt %s --explain-fusion 2>&1 | filecheck %s

func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x4xf32>) -> tensor<4x4xf32> attributes {input_names = ["x", "w"], output_names = ["y"]} {
  %m = graph.matmul %x, %w : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %y = graph.matmul %m, %m : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %y : tensor<4x4xf32>
}

// CHECK: remark: %m (matmul) -> %y (matmul): not fused, the user is an anchor itself
// CHECK: remark: %y (matmul) -> (func.return): not fused, the result leaves the function
