builtin.module attributes {schedule.record = {us = 5.833300e+02 : f64, default_us = 6.106300e+02 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "865fe58bc4dd", date = "2026-11-26", in_model = "1.039x, in a model 1.011 times as fast"}} {
  func.func @main(%0: tensor<16x2x128x64xf32>, %1: tensor<1x8x28x28x16xf32>, %2: tensor<1x8x1x1x16xf32>) -> tensor<784x128xf32> {
    %3 = graph.fused "unpack_winograd_conv_add_relu_im2col_4" {
      %4 = graph.compute "unpack" (%5, %6, %7) {
        %8 = arith.constant 64 : index
        %9 = arith.divui %7, %8 : index
        %10 = arith.remui %7, %8 : index
        %11 = graph.at %0[%5, %9, %6, %10] : tensor<16x2x128x64xf32>
        graph.yield %11 : f32
      } : tensor<16x128x128xf32>
      %12 = graph.winograd_conv %1, %4 {outputs = 2 : i64, pads = array<i64: 1, 1, 1, 1>} : (tensor<1x8x28x28x16xf32>, tensor<16x128x128xf32>) -> tensor<1x8x28x28x16xf32>
      %13 = graph.compute "add relu" (%14, %15, %16, %17, %18) {
        %19 = arith.constant 0 : index
        %20 = graph.at %12[%19, %15, %16, %17, %18] : tensor<1x8x28x28x16xf32>
        %21 = graph.at %2[%19, %15, %19, %19, %18] : tensor<1x8x1x1x16xf32>
        %22 = arith.addf %20, %21 : f32
        %23 = arith.constant 0.000000e+00 : f32
        %24 = arith.maximumf %22, %23 : f32
        graph.yield %24 : f32
      } : tensor<1x8x28x28x16xf32>
      %25 = graph.compute "im2col" (%26, %27) {
        %28 = arith.constant 0 : index
        %29 = arith.constant 28 : index
        %30 = arith.divui %26, %29 : index
        %31 = arith.remui %26, %29 : index
        %32 = arith.constant 16 : index
        %33 = arith.divui %27, %32 : index
        %34 = arith.remui %27, %32 : index
        %35 = graph.at %13[%28, %33, %30, %31, %34] : tensor<1x8x28x28x16xf32>
        graph.yield %35 : f32
      } : tensor<784x128xf32>
      graph.yield %25 : tensor<784x128xf32>
    } schedule #schedule.use<"winograd_cpu", {rows = 7, chunk = 28, panels = 1}> : tensor<784x128xf32>
    func.return %3 : tensor<784x128xf32>
  }
}
