builtin.module attributes {schedule.record = {us = 1.173000e+01 : f64, default_us = 1.173000e+01 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "865fe58bc4dd", date = "2026-11-26"}} {
  func.func @main(%0: tensor<1x128x768xf32>, %1: tensor<768xf32>, %2: tensor<768xf32>) -> tensor<1x128x768xf32> {
    %3 = graph.fused "layer_norm" {
      %4 = graph.compute "layer_norm" (%5, %6, %7) {
        %8 = arith.constant 7.680000e+02 : f32
        %9 = graph.reduce add (%10 in 768) {
          %11 = arith.constant 0 : index
          %12 = graph.at %0[%11, %6, %10] : tensor<1x128x768xf32>
          graph.yield %12 : f32
        }
        %13 = arith.divf %9, %8 : f32
        %14 = graph.reduce add (%15 in 768) {
          %16 = arith.constant 0 : index
          %17 = graph.at %0[%16, %6, %15] : tensor<1x128x768xf32>
          %18 = arith.subf %17, %13 : f32
          %19 = arith.mulf %18, %18 : f32
          graph.yield %19 : f32
        }
        %20 = arith.divf %14, %8 : f32
        %21 = arith.constant 1.000000e-12 : f32
        %22 = arith.addf %20, %21 : f32
        %23 = math.rsqrt %22 : f32
        %24 = arith.constant 0 : index
        %25 = graph.at %0[%24, %6, %7] : tensor<1x128x768xf32>
        %26 = arith.subf %25, %13 : f32
        %27 = arith.mulf %26, %23 : f32
        %28 = graph.at %1[%7] : tensor<768xf32>
        %29 = graph.at %2[%7] : tensor<768xf32>
        %30 = arith.mulf %27, %28 : f32
        %31 = arith.addf %30, %29 : f32
        graph.yield %31 : f32
      } : tensor<1x128x768xf32>
      graph.yield %4 : tensor<1x128x768xf32>
    } schedule #schedule.use<"row_cpu", {across = "columns", lanes = 64, rows = 8, cache_row = true}> : tensor<1x128x768xf32>
    func.return %3 : tensor<1x128x768xf32>
  }
}
