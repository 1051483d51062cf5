builtin.module attributes {schedule.record = {us = 8.485000e+01 : f64, default_us = 8.866000e+01 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "3b7d456dd8bf", date = "2026-11-26", in_model = "1.080x, in a model 1.019 times as fast"}} {
  func.func @main(%0: tensor<4x960x48xf32>, %1: tensor<49x960xf32>, %2: tensor<1x10x7x7x16xf32>, %3: tensor<1x10x1x1x16xf32>) -> tensor<49x160xf32> {
    %4 = graph.fused "unpack_matmul_add_im2col_5" {
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
      %31 = graph.compute "im2col" (%32, %33) {
        %34 = arith.constant 0 : index
        %35 = arith.constant 7 : index
        %36 = arith.divui %32, %35 : index
        %37 = arith.remui %32, %35 : index
        %38 = arith.constant 16 : index
        %39 = arith.divui %33, %38 : index
        %40 = arith.remui %33, %38 : index
        %41 = graph.at %13[%34, %39, %36, %37, %40] : tensor<1x10x7x7x16xf32>
        graph.yield %41 : f32
      } : tensor<49x160xf32>
      graph.yield %31 : tensor<49x160xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 7, vectors = 3, chunk = 28, pack = false, passes = 3}> : tensor<49x160xf32>
    func.return %4 : tensor<49x160xf32>
  }
}
