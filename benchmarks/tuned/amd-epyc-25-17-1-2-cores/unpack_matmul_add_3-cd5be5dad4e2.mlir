builtin.module attributes {schedule.record = {us = 2.753330e+03 : f64, default_us = 2.858720e+03 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "865fe58bc4dd", date = "2026-11-26", in_model = "1.055x, in a model 1.020 times as fast"}} {
  func.func @main(%0: tensor<16x3072x48xf32>, %1: tensor<128x3072xf32>, %2: tensor<768xf32>, %3: tensor<1x128x768xf32>) -> tensor<1x128x768xf32> {
    %4 = graph.fused "unpack_matmul_add_3" {
      %5 = graph.compute "unpack" (%6, %7) {
        %8 = arith.constant 48 : index
        %9 = arith.divui %7, %8 : index
        %10 = arith.remui %7, %8 : index
        %11 = graph.at %0[%9, %6, %10] : tensor<16x3072x48xf32>
        graph.yield %11 : f32
      } : tensor<3072x768xf32>
      %12 = graph.matmul %1, %5 : (tensor<128x3072xf32>, tensor<3072x768xf32>) -> tensor<128x768xf32>
      %13 = graph.compute "reshape add" (%14, %15, %16) {
        %17 = arith.constant 0 : index
        %18 = graph.at %12[%15, %16] : tensor<128x768xf32>
        %19 = graph.at %2[%16] : tensor<768xf32>
        %20 = arith.addf %18, %19 : f32
        %21 = graph.at %3[%17, %15, %16] : tensor<1x128x768xf32>
        %22 = arith.addf %20, %21 : f32
        graph.yield %22 : f32
      } : tensor<1x128x768xf32>
      graph.yield %13 : tensor<1x128x768xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 8, vectors = 3, chunk = 32, pack = false, passes = 4}> : tensor<1x128x768xf32>
    func.return %4 : tensor<1x128x768xf32>
  }
}
