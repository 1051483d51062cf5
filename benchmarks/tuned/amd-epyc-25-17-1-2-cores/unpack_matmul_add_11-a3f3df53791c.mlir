builtin.module attributes {schedule.record = {us = 9.658000e+01 : f64, default_us = 9.658000e+01 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "3b7d456dd8bf", date = "2026-11-26", in_model = "dropped: 0.999x, not faster in the model"}} {
  func.func @main(%0: tensor<4x960x48xf32>, %1: tensor<49x960xf32>, %2: tensor<1x10x7x7x16xf32>, %3: tensor<1x10x1x1x16xf32>) -> tensor<1x10x7x7x16xf32> {
    %4 = graph.fused "unpack_matmul_add_11" {
      %5 = graph.compute "unpack" (%6, %7) {
        %8 = arith.constant 48 : index
        %9 = arith.divui %7, %8 : index
        %10 = arith.remui %7, %8 : index
        %11 = graph.at %0[%9, %6, %10] : tensor<4x960x48xf32>
        graph.yield %11 : f32
      } : tensor<960x160xf32>
      %12 = graph.matmul %1, %5 : (tensor<49x960xf32>, tensor<960x160xf32>) -> tensor<49x160xf32>
      %13 = graph.compute "reshape transpose add" (%14, %15, %16, %17, %18) {
        %19 = arith.constant 0 : index
        %20 = graph.at %2[%19, %15, %16, %17, %18] : tensor<1x10x7x7x16xf32>
        %21 = arith.constant 7 : index
        %22 = arith.constant 16 : index
        %23 = arith.muli %16, %21 : index
        %24 = arith.addi %23, %17 : index
        %25 = arith.muli %15, %22 : index
        %26 = arith.addi %25, %18 : index
        %27 = graph.at %12[%24, %26] : tensor<49x160xf32>
        %28 = graph.at %3[%19, %15, %19, %19, %18] : tensor<1x10x1x1x16xf32>
        %29 = arith.addf %27, %28 : f32
        %30 = arith.addf %20, %29 : f32
        graph.yield %30 : f32
      } : tensor<1x10x7x7x16xf32>
      graph.yield %13 : tensor<1x10x7x7x16xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 7, vectors = 3, chunk = 49, pack = false, passes = 1}> : tensor<1x10x7x7x16xf32>
    func.return %4 : tensor<1x10x7x7x16xf32>
  }
}
