builtin.module attributes {schedule.record = {us = 2.048600e+03 : f64, default_us = 2.048600e+03 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "865fe58bc4dd", date = "2026-11-26"}} {
  func.func @main(%0: tensor<1x3x230x230xf32>, %1: tensor<1x147x64xf32>, %2: tensor<1x4x1x1x16xf32>) -> tensor<1x4x112x112x16xf32> {
    %3 = graph.fused "im2col_unpack_matmul_add_relu" {
      %4 = graph.compute "im2col" (%5, %6) {
        %7 = arith.constant 0 : index
        %8 = arith.constant 112 : index
        %9 = arith.divui %5, %8 : index
        %10 = arith.remui %5, %8 : index
        %11 = arith.constant 49 : index
        %12 = arith.divui %6, %11 : index
        %13 = arith.constant 7 : index
        %14 = arith.divui %6, %13 : index
        %15 = arith.remui %14, %13 : index
        %16 = arith.remui %6, %13 : index
        %17 = arith.constant 2 : index
        %18 = arith.muli %9, %17 : index
        %19 = arith.addi %18, %15 : index
        %20 = arith.muli %10, %17 : index
        %21 = arith.addi %20, %16 : index
        %22 = graph.at %0[%7, %12, %19, %21] : tensor<1x3x230x230xf32>
        graph.yield %22 : f32
      } : tensor<12544x147xf32>
      %23 = graph.compute "unpack" (%24, %25) {
        %26 = arith.constant 0 : index
        %27 = graph.at %1[%26, %24, %25] : tensor<1x147x64xf32>
        graph.yield %27 : f32
      } : tensor<147x64xf32>
      %28 = graph.matmul %4, %23 : (tensor<12544x147xf32>, tensor<147x64xf32>) -> tensor<12544x64xf32>
      %29 = graph.compute "reshape transpose add relu" (%30, %31, %32, %33, %34) {
        %35 = arith.constant 0 : index
        %36 = arith.constant 112 : index
        %37 = arith.constant 16 : index
        %38 = arith.muli %32, %36 : index
        %39 = arith.addi %38, %33 : index
        %40 = arith.muli %31, %37 : index
        %41 = arith.addi %40, %34 : index
        %42 = graph.at %28[%39, %41] : tensor<12544x64xf32>
        %43 = graph.at %2[%35, %31, %35, %35, %34] : tensor<1x4x1x1x16xf32>
        %44 = arith.addf %42, %43 : f32
        %45 = arith.constant 0.000000e+00 : f32
        %46 = arith.maximumf %44, %45 : f32
        graph.yield %46 : f32
      } : tensor<1x4x112x112x16xf32>
      graph.yield %29 : tensor<1x4x112x112x16xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 7, vectors = 4, chunk = 784, pack = false, passes = 1}> : tensor<1x4x112x112x16xf32>
    func.return %3 : tensor<1x4x112x112x16xf32>
  }
}
