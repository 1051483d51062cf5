builtin.module attributes {schedule.record = {us = 1.234000e+01 : f64, default_us = 1.653000e+01 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "3b7d456dd8bf", date = "2026-11-26", in_model = "1.162x, in a model 1.019 times as fast"}} {
  func.func @main(%0: tensor<1x36x14x14x16xf32>, %1: tensor<36x1x3x3x16xf32>, %2: tensor<1x36x1x1x16xf32>) -> tensor<196x576xf32> {
    %3 = graph.fused "conv_add_max_min_im2col_12" {
      %4 = graph.compute "conv" (%5, %6, %7, %8, %9) {
        %10 = graph.reduce add (%11 in 1, %12 in 3, %13 in 3) {
          %14 = arith.addi %7, %12 : index
          %15 = arith.constant 1 : index
          %16 = arith.subi %14, %15 : index
          %17 = arith.constant 0 : index
          %18 = arith.cmpi sge, %16, %17 : index
          %19 = arith.constant 14 : index
          %20 = arith.cmpi slt, %16, %19 : index
          %21 = arith.addi %8, %13 : index
          %22 = arith.subi %21, %15 : index
          %23 = arith.cmpi sge, %22, %17 : index
          %24 = arith.cmpi slt, %22, %19 : index
          %25 = arith.andi %18, %20 : i1
          %26 = arith.andi %25, %23 : i1
          %27 = arith.andi %26, %24 : i1
          %28 = arith.constant 0.000000e+00 : f32
          %29 = graph.at %0[%17, %6, %16, %22, %9] where %27 else %28 : tensor<1x36x14x14x16xf32>
          %30 = graph.at %1[%6, %17, %12, %13, %9] : tensor<36x1x3x3x16xf32>
          %31 = arith.mulf %29, %30 : f32
          graph.yield %31 : f32
        }
        graph.yield %10 : f32
      } : tensor<1x36x14x14x16xf32>
      %32 = graph.compute "add max min" (%33, %34, %35, %36, %37) {
        %38 = arith.constant 0 : index
        %39 = graph.at %4[%38, %34, %35, %36, %37] : tensor<1x36x14x14x16xf32>
        %40 = graph.at %2[%38, %34, %38, %38, %37] : tensor<1x36x1x1x16xf32>
        %41 = arith.addf %39, %40 : f32
        %42 = arith.constant 0.000000e+00 : f32
        %43 = arith.maximumf %41, %42 : f32
        %44 = arith.constant 6.000000e+00 : f32
        %45 = arith.minimumf %43, %44 : f32
        graph.yield %45 : f32
      } : tensor<1x36x14x14x16xf32>
      %46 = graph.compute "im2col" (%47, %48) {
        %49 = arith.constant 0 : index
        %50 = arith.constant 14 : index
        %51 = arith.divui %47, %50 : index
        %52 = arith.remui %47, %50 : index
        %53 = arith.constant 16 : index
        %54 = arith.divui %48, %53 : index
        %55 = arith.remui %48, %53 : index
        %56 = graph.at %32[%49, %54, %51, %52, %55] : tensor<1x36x14x14x16xf32>
        graph.yield %56 : f32
      } : tensor<196x576xf32>
      graph.yield %46 : tensor<196x576xf32>
    } schedule #schedule.use<"window_cpu", {windows = 7, rows = 14}> : tensor<196x576xf32>
    func.return %3 : tensor<196x576xf32>
  }
}
