builtin.module attributes {schedule.record = {us = 6.714000e+02 : f64, default_us = 6.714000e+02 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "865fe58bc4dd", date = "2026-11-26"}} {
  func.func @main(%0: tensor<1x12x23x17x16xf32>, %1: tensor<4x1344x48xf32>, %2: tensor<1x12x1x1x16xf32>) -> tensor<1x12x17x17x16xf32> {
    %3 = graph.fused "im2col_unpack_matmul_add_relu_48" {
      %4 = graph.compute "im2col" (%5, %6) {
        %7 = arith.constant 0 : index
        %8 = arith.constant 17 : index
        %9 = arith.divui %5, %8 : index
        %10 = arith.remui %5, %8 : index
        %11 = arith.constant 112 : index
        %12 = arith.divui %6, %11 : index
        %13 = arith.constant 16 : index
        %14 = arith.divui %6, %13 : index
        %15 = arith.constant 7 : index
        %16 = arith.remui %14, %15 : index
        %17 = arith.remui %6, %13 : index
        %18 = arith.addi %9, %16 : index
        %19 = graph.at %0[%7, %12, %18, %10, %17] : tensor<1x12x23x17x16xf32>
        graph.yield %19 : f32
      } : tensor<289x1344xf32>
      %20 = graph.compute "unpack" (%21, %22) {
        %23 = arith.constant 48 : index
        %24 = arith.divui %22, %23 : index
        %25 = arith.remui %22, %23 : index
        %26 = graph.at %1[%24, %21, %25] : tensor<4x1344x48xf32>
        graph.yield %26 : f32
      } : tensor<1344x192xf32>
      %27 = graph.matmul %4, %20 : (tensor<289x1344xf32>, tensor<1344x192xf32>) -> tensor<289x192xf32>
      %28 = graph.compute "reshape transpose add relu" (%29, %30, %31, %32, %33) {
        %34 = arith.constant 0 : index
        %35 = arith.constant 17 : index
        %36 = arith.constant 16 : index
        %37 = arith.muli %31, %35 : index
        %38 = arith.addi %37, %32 : index
        %39 = arith.muli %30, %36 : index
        %40 = arith.addi %39, %33 : index
        %41 = graph.at %27[%38, %40] : tensor<289x192xf32>
        %42 = graph.at %2[%34, %30, %34, %34, %33] : tensor<1x12x1x1x16xf32>
        %43 = arith.addf %41, %42 : f32
        %44 = arith.constant 0.000000e+00 : f32
        %45 = arith.maximumf %43, %44 : f32
        graph.yield %45 : f32
      } : tensor<1x12x17x17x16xf32>
      graph.yield %28 : tensor<1x12x17x17x16xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 7, vectors = 3, chunk = 147, pack = false, passes = 1}> : tensor<1x12x17x17x16xf32>
    func.return %3 : tensor<1x12x17x17x16xf32>
  }
}
