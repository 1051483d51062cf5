builtin.module attributes {schedule.record = {us = 7.947000e+01 : f64, default_us = 7.947000e+01 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "3b7d456dd8bf", date = "2026-11-26"}} {
  func.func @main(%0: tensor<1x192x32xf32>, %1: tensor<784x192xf32>, %2: tensor<1x2x28x28x16xf32>, %3: tensor<1x2x1x1x16xf32>) -> tensor<1x2x28x28x16xf32> {
    %4 = graph.fused "unpack_matmul_add_4" {
      %5 = graph.compute "unpack" (%6, %7) {
        %8 = arith.constant 0 : index
        %9 = graph.at %0[%8, %6, %7] : tensor<1x192x32xf32>
        graph.yield %9 : f32
      } : tensor<192x32xf32>
      %10 = graph.matmul %1, %5 : (tensor<784x192xf32>, tensor<192x32xf32>) -> tensor<784x32xf32>
      %11 = graph.compute "reshape transpose add" (%12, %13, %14, %15, %16) {
        %17 = arith.constant 0 : index
        %18 = graph.at %2[%17, %13, %14, %15, %16] : tensor<1x2x28x28x16xf32>
        %19 = arith.constant 28 : index
        %20 = arith.constant 16 : index
        %21 = arith.muli %14, %19 : index
        %22 = arith.addi %21, %15 : index
        %23 = arith.muli %13, %20 : index
        %24 = arith.addi %23, %16 : index
        %25 = graph.at %10[%22, %24] : tensor<784x32xf32>
        %26 = graph.at %3[%17, %13, %17, %17, %16] : tensor<1x2x1x1x16xf32>
        %27 = arith.addf %25, %26 : f32
        %28 = arith.addf %18, %27 : f32
        graph.yield %28 : f32
      } : tensor<1x2x28x28x16xf32>
      graph.yield %11 : tensor<1x2x28x28x16xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 8, vectors = 2, chunk = 392, pack = false, passes = 1}> : tensor<1x2x28x28x16xf32>
    func.return %4 : tensor<1x2x28x28x16xf32>
  }
}
