builtin.module attributes {schedule.record = {us = 4.860800e+02 : f64, default_us = 4.860800e+02 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "865fe58bc4dd", date = "2026-11-26"}} {
  func.func @main(%0: tensor<1x32x28x28x16xf32>, %1: tensor<2x512x64xf32>, %2: tensor<1x8x1x1x16xf32>) -> tensor<1x8x28x28x16xf32> {
    %3 = graph.fused "im2col_unpack_matmul_add_relu_9" {
      %4 = graph.compute "im2col" (%5, %6) {
        %7 = arith.constant 0 : index
        %8 = arith.constant 28 : index
        %9 = arith.divui %5, %8 : index
        %10 = arith.remui %5, %8 : index
        %11 = arith.constant 16 : index
        %12 = arith.divui %6, %11 : index
        %13 = arith.remui %6, %11 : index
        %14 = graph.at %0[%7, %12, %9, %10, %13] : tensor<1x32x28x28x16xf32>
        graph.yield %14 : f32
      } : tensor<784x512xf32>
      %15 = graph.compute "unpack" (%16, %17) {
        %18 = arith.constant 64 : index
        %19 = arith.divui %17, %18 : index
        %20 = arith.remui %17, %18 : index
        %21 = graph.at %1[%19, %16, %20] : tensor<2x512x64xf32>
        graph.yield %21 : f32
      } : tensor<512x128xf32>
      %22 = graph.matmul %4, %15 : (tensor<784x512xf32>, tensor<512x128xf32>) -> tensor<784x128xf32>
      %23 = graph.compute "reshape transpose add relu" (%24, %25, %26, %27, %28) {
        %29 = arith.constant 0 : index
        %30 = arith.constant 28 : index
        %31 = arith.constant 16 : index
        %32 = arith.muli %26, %30 : index
        %33 = arith.addi %32, %27 : index
        %34 = arith.muli %25, %31 : index
        %35 = arith.addi %34, %28 : index
        %36 = graph.at %22[%33, %35] : tensor<784x128xf32>
        %37 = graph.at %2[%29, %25, %29, %29, %28] : tensor<1x8x1x1x16xf32>
        %38 = arith.addf %36, %37 : f32
        %39 = arith.constant 0.000000e+00 : f32
        %40 = arith.maximumf %38, %39 : f32
        graph.yield %40 : f32
      } : tensor<1x8x28x28x16xf32>
      graph.yield %23 : tensor<1x8x28x28x16xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 7, vectors = 4, chunk = 98, pack = false, passes = 1}> : tensor<1x8x28x28x16xf32>
    func.return %3 : tensor<1x8x28x28x16xf32>
  }
}
