builtin.module attributes {schedule.record = {us = 5.281000e+01 : f64, default_us = 5.281000e+01 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "3b7d456dd8bf", date = "2026-11-26", in_model = "dropped: 0.981x, not faster in the model"}} {
  func.func @main(%0: tensor<1x6x112x112x16xf32>, %1: tensor<6x1x3x3x16xf32>, %2: tensor<1x6x1x1x16xf32>) -> tensor<3136x96xf32> {
    %3 = graph.fused "conv_add_max_min_im2col_2" {
      %4 = graph.compute "conv" (%5, %6, %7, %8, %9) {
        %10 = graph.reduce add (%11 in 1, %12 in 3, %13 in 3) {
          %14 = arith.constant 2 : index
          %15 = arith.muli %7, %14 : index
          %16 = arith.addi %15, %12 : index
          %17 = arith.constant 1 : index
          %18 = arith.subi %16, %17 : index
          %19 = arith.constant 0 : index
          %20 = arith.cmpi sge, %18, %19 : index
          %21 = arith.muli %8, %14 : index
          %22 = arith.addi %21, %13 : index
          %23 = arith.subi %22, %17 : index
          %24 = arith.cmpi sge, %23, %19 : index
          %25 = arith.andi %20, %24 : i1
          %26 = arith.constant 0.000000e+00 : f32
          %27 = graph.at %0[%19, %6, %18, %23, %9] where %25 else %26 : tensor<1x6x112x112x16xf32>
          %28 = graph.at %1[%6, %19, %12, %13, %9] : tensor<6x1x3x3x16xf32>
          %29 = arith.mulf %27, %28 : f32
          graph.yield %29 : f32
        }
        graph.yield %10 : f32
      } : tensor<1x6x56x56x16xf32>
      %30 = graph.compute "add max min" (%31, %32, %33, %34, %35) {
        %36 = arith.constant 0 : index
        %37 = graph.at %4[%36, %32, %33, %34, %35] : tensor<1x6x56x56x16xf32>
        %38 = graph.at %2[%36, %32, %36, %36, %35] : tensor<1x6x1x1x16xf32>
        %39 = arith.addf %37, %38 : f32
        %40 = arith.constant 0.000000e+00 : f32
        %41 = arith.maximumf %39, %40 : f32
        %42 = arith.constant 6.000000e+00 : f32
        %43 = arith.minimumf %41, %42 : f32
        graph.yield %43 : f32
      } : tensor<1x6x56x56x16xf32>
      %44 = graph.compute "im2col" (%45, %46) {
        %47 = arith.constant 0 : index
        %48 = arith.constant 56 : index
        %49 = arith.divui %45, %48 : index
        %50 = arith.remui %45, %48 : index
        %51 = arith.constant 16 : index
        %52 = arith.divui %46, %51 : index
        %53 = arith.remui %46, %51 : index
        %54 = graph.at %30[%47, %52, %49, %50, %53] : tensor<1x6x56x56x16xf32>
        graph.yield %54 : f32
      } : tensor<3136x96xf32>
      graph.yield %44 : tensor<3136x96xf32>
    } schedule #schedule.use<"window_cpu", {windows = 8, rows = 14}> : tensor<3136x96xf32>
    func.return %3 : tensor<3136x96xf32>
  }
}
