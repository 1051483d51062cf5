builtin.module attributes {schedule.record = {us = 1.301800e+02 : f64, default_us = 1.301800e+02 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "3b7d456dd8bf", date = "2026-11-26", in_model = "dropped: 0.732x, not faster in the model"}} {
  func.func @main(%0: tensor<21x1280x48xf32>, %1: tensor<1x1280xf32>) -> tensor<1x1000xf32> {
    %2 = graph.fused "unpack_matmul" {
      %3 = graph.compute "unpack" (%4, %5) {
        %6 = arith.constant 48 : index
        %7 = arith.divui %5, %6 : index
        %8 = arith.remui %5, %6 : index
        %9 = graph.at %0[%7, %4, %8] : tensor<21x1280x48xf32>
        graph.yield %9 : f32
      } : tensor<1280x1000xf32>
      %10 = graph.matmul %1, %3 : (tensor<1x1280xf32>, tensor<1280x1000xf32>) -> tensor<1x1000xf32>
      graph.yield %10 : tensor<1x1000xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 1, vectors = 3, chunk = 1, pack = false, passes = 1}> : tensor<1x1000xf32>
    func.return %2 : tensor<1x1000xf32>
  }
}
