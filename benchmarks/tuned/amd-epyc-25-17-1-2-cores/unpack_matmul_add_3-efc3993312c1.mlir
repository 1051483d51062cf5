builtin.module attributes {schedule.record = {us = 3.799000e+01 : f64, default_us = 3.799000e+01 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "3b7d456dd8bf", date = "2026-11-26"}} {
  func.func @main(%0: tensor<1x144x32xf32>, %1: tensor<784x144xf32>, %2: tensor<1x2x1x1x16xf32>) -> tensor<1x2x28x28x16xf32> {
    %3 = graph.fused "unpack_matmul_add_3" {
      %4 = graph.compute "unpack" (%5, %6) {
        %7 = arith.constant 0 : index
        %8 = graph.at %0[%7, %5, %6] : tensor<1x144x32xf32>
        graph.yield %8 : f32
      } : tensor<144x32xf32>
      %9 = graph.matmul %1, %4 : (tensor<784x144xf32>, tensor<144x32xf32>) -> tensor<784x32xf32>
      %10 = graph.compute "reshape transpose add" (%11, %12, %13, %14, %15) {
        %16 = arith.constant 0 : index
        %17 = arith.constant 28 : index
        %18 = arith.constant 16 : index
        %19 = arith.muli %13, %17 : index
        %20 = arith.addi %19, %14 : index
        %21 = arith.muli %12, %18 : index
        %22 = arith.addi %21, %15 : index
        %23 = graph.at %9[%20, %22] : tensor<784x32xf32>
        %24 = graph.at %2[%16, %12, %16, %16, %15] : tensor<1x2x1x1x16xf32>
        %25 = arith.addf %23, %24 : f32
        graph.yield %25 : f32
      } : tensor<1x2x28x28x16xf32>
      graph.yield %10 : tensor<1x2x28x28x16xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 8, vectors = 2, chunk = 392, pack = false, passes = 1}> : tensor<1x2x28x28x16xf32>
    func.return %3 : tensor<1x2x28x28x16xf32>
  }
}
