builtin.module attributes {schedule.record = {us = 3.236200e+02 : f64, default_us = 3.236200e+02 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "865fe58bc4dd", date = "2026-11-26"}} {
  func.func @main(%0: tensor<1x128x2304xf32>, %1: tensor<1x1x128x128xf32>) -> tensor<128x768xf32> {
    %2 = graph.fused "attention" {
      %3 = graph.compute "slice reshape transpose" (%4, %5, %6, %7) {
        %8 = arith.constant 0 : index
        %9 = arith.constant 64 : index
        %10 = arith.muli %5, %9 : index
        %11 = arith.addi %10, %7 : index
        %12 = graph.at %0[%8, %6, %11] : tensor<1x128x2304xf32>
        graph.yield %12 : f32
      } : tensor<1x12x128x64xf32>
      %13 = graph.compute "slice reshape transpose" (%14, %15, %16, %17) {
        %18 = arith.constant 0 : index
        %19 = arith.constant 64 : index
        %20 = arith.muli %15, %19 : index
        %21 = arith.addi %20, %17 : index
        %22 = arith.constant 1536 : index
        %23 = arith.addi %21, %22 : index
        %24 = graph.at %0[%18, %16, %23] : tensor<1x128x2304xf32>
        graph.yield %24 : f32
      } : tensor<1x12x128x64xf32>
      %25 = graph.compute "slice reshape transpose" (%26, %27, %28, %29) {
        %30 = arith.constant 0 : index
        %31 = arith.constant 64 : index
        %32 = arith.muli %27, %31 : index
        %33 = arith.addi %32, %29 : index
        %34 = arith.constant 768 : index
        %35 = arith.addi %33, %34 : index
        %36 = graph.at %0[%30, %28, %35] : tensor<1x128x2304xf32>
        graph.yield %36 : f32
      } : tensor<1x12x128x64xf32>
      %37 = graph.attention %3, %25, %13 mask %1 {scale = 0.12499999572143228 : f64, causal = 0 : i64, guard = 1 : i64} : (tensor<1x12x128x64xf32>, tensor<1x12x128x64xf32>, tensor<1x12x128x64xf32>, tensor<1x1x128x128xf32>) -> tensor<1x12x128x64xf32>
      %38 = graph.compute "transpose reshape" (%39, %40) {
        %41 = arith.constant 0 : index
        %42 = arith.constant 64 : index
        %43 = arith.divui %40, %42 : index
        %44 = arith.remui %40, %42 : index
        %45 = graph.at %37[%41, %43, %39, %44] : tensor<1x12x128x64xf32>
        graph.yield %45 : f32
      } : tensor<128x768xf32>
      graph.yield %38 : tensor<128x768xf32>
    } schedule #schedule.use<"attention_cpu", {vectors = 2, keys = 13, rows = 11, columns = 2}> : tensor<128x768xf32>
    func.return %2 : tensor<128x768xf32>
  }
}
