builtin.module attributes {schedule.record = {us = 5.447000e+01 : f64, default_us = 5.447000e+01 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "3b7d456dd8bf", date = "2026-11-26"}} {
  func.func @main(%0: tensor<4x576x48xf32>, %1: tensor<49x576xf32>, %2: tensor<1x10x1x1x16xf32>) -> tensor<1x10x7x7x16xf32> {
    %3 = graph.fused "unpack_matmul_add_10" {
      %4 = graph.compute "unpack" (%5, %6) {
        %7 = arith.constant 48 : index
        %8 = arith.divui %6, %7 : index
        %9 = arith.remui %6, %7 : index
        %10 = graph.at %0[%8, %5, %9] : tensor<4x576x48xf32>
        graph.yield %10 : f32
      } : tensor<576x160xf32>
      %11 = graph.matmul %1, %4 : (tensor<49x576xf32>, tensor<576x160xf32>) -> tensor<49x160xf32>
      %12 = graph.compute "reshape transpose add" (%13, %14, %15, %16, %17) {
        %18 = arith.constant 0 : index
        %19 = arith.constant 7 : index
        %20 = arith.constant 16 : index
        %21 = arith.muli %15, %19 : index
        %22 = arith.addi %21, %16 : index
        %23 = arith.muli %14, %20 : index
        %24 = arith.addi %23, %17 : index
        %25 = graph.at %11[%22, %24] : tensor<49x160xf32>
        %26 = graph.at %2[%18, %14, %18, %18, %17] : tensor<1x10x1x1x16xf32>
        %27 = arith.addf %25, %26 : f32
        graph.yield %27 : f32
      } : tensor<1x10x7x7x16xf32>
      graph.yield %12 : tensor<1x10x7x7x16xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 7, vectors = 3, chunk = 49, pack = false, passes = 1}> : tensor<1x10x7x7x16xf32>
    func.return %3 : tensor<1x10x7x7x16xf32>
  }
}
