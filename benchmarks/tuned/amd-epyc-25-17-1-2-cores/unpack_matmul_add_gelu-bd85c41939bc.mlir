builtin.module attributes {schedule.record = {us = 2.863980e+03 : f64, default_us = 2.863980e+03 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "865fe58bc4dd", date = "2026-11-26"}} {
  func.func @main(%0: tensor<1x128x768xf32>, %1: tensor<64x768x48xf32>, %2: tensor<3072xf32>) -> tensor<128x3072xf32> {
    %3 = graph.fused "unpack_matmul_add_gelu" {
      %4 = graph.compute "reshape" (%5, %6) {
        %7 = arith.constant 0 : index
        %8 = graph.at %0[%7, %5, %6] : tensor<1x128x768xf32>
        graph.yield %8 : f32
      } : tensor<128x768xf32>
      %9 = graph.compute "unpack" (%10, %11) {
        %12 = arith.constant 48 : index
        %13 = arith.divui %11, %12 : index
        %14 = arith.remui %11, %12 : index
        %15 = graph.at %1[%13, %10, %14] : tensor<64x768x48xf32>
        graph.yield %15 : f32
      } : tensor<768x3072xf32>
      %16 = graph.matmul %4, %9 : (tensor<128x768xf32>, tensor<768x3072xf32>) -> tensor<128x3072xf32>
      %17 = graph.compute "reshape add gelu" (%18, %19, %20) {
        %21 = graph.at %16[%19, %20] : tensor<128x3072xf32>
        %22 = graph.at %2[%20] : tensor<3072xf32>
        %23 = arith.addf %21, %22 : f32
        %24 = arith.constant 0.707106769 : f32
        %25 = arith.mulf %23, %24 : f32
        %26 = math.erf %25 : f32
        %27 = arith.constant 5.000000e-01 : f32
        %28 = arith.mulf %23, %27 : f32
        %29 = arith.constant 1.000000e+00 : f32
        %30 = arith.addf %29, %26 : f32
        %31 = arith.mulf %28, %30 : f32
        graph.yield %31 : f32
      } : tensor<1x128x3072xf32>
      %32 = graph.compute "reshape" (%33, %34) {
        %35 = arith.constant 0 : index
        %36 = graph.at %17[%35, %33, %34] : tensor<1x128x3072xf32>
        graph.yield %36 : f32
      } : tensor<128x3072xf32>
      graph.yield %32 : tensor<128x3072xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 8, vectors = 3, chunk = 128, pack = false, passes = 1}> : tensor<128x3072xf32>
    func.return %3 : tensor<128x3072xf32>
  }
}
