builtin.module attributes {schedule.record = {us = 8.172400e+02 : f64, default_us = 8.172400e+02 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "865fe58bc4dd", date = "2026-11-26"}} {
  func.func @main(%0: tensor<1x4x56x56x16xf32>, %1: tensor<6x64x48xf32>, %2: tensor<3136x256xf32>, %3: tensor<1x16x1x1x16xf32>, %4: tensor<1x16x1x1x16xf32>) -> tensor<1x16x56x56x16xf32> {
    %5 = graph.fused "im2col_unpack_matmul_add_relu_3" {
      %6 = graph.compute "im2col" (%7, %8) {
        %9 = arith.constant 0 : index
        %10 = arith.constant 56 : index
        %11 = arith.divui %7, %10 : index
        %12 = arith.remui %7, %10 : index
        %13 = arith.constant 16 : index
        %14 = arith.divui %8, %13 : index
        %15 = arith.remui %8, %13 : index
        %16 = graph.at %0[%9, %14, %11, %12, %15] : tensor<1x4x56x56x16xf32>
        graph.yield %16 : f32
      } : tensor<3136x64xf32>
      %17 = graph.compute "unpack" (%18, %19) {
        %20 = arith.constant 48 : index
        %21 = arith.divui %19, %20 : index
        %22 = arith.remui %19, %20 : index
        %23 = graph.at %1[%21, %18, %22] : tensor<6x64x48xf32>
        graph.yield %23 : f32
      } : tensor<64x256xf32>
      %24 = graph.matmul %6, %17 : (tensor<3136x64xf32>, tensor<64x256xf32>) -> tensor<3136x256xf32>
      %25 = graph.compute "reshape transpose add relu" (%26, %27, %28, %29, %30) {
        %31 = arith.constant 0 : index
        %32 = arith.constant 56 : index
        %33 = arith.constant 16 : index
        %34 = arith.muli %28, %32 : index
        %35 = arith.addi %34, %29 : index
        %36 = arith.muli %27, %33 : index
        %37 = arith.addi %36, %30 : index
        %38 = graph.at %2[%35, %37] : tensor<3136x256xf32>
        %39 = graph.at %3[%31, %27, %31, %31, %30] : tensor<1x16x1x1x16xf32>
        %40 = arith.addf %38, %39 : f32
        %41 = graph.at %24[%35, %37] : tensor<3136x256xf32>
        %42 = graph.at %4[%31, %27, %31, %31, %30] : tensor<1x16x1x1x16xf32>
        %43 = arith.addf %41, %42 : f32
        %44 = arith.addf %40, %43 : f32
        %45 = arith.constant 0.000000e+00 : f32
        %46 = arith.maximumf %44, %45 : f32
        graph.yield %46 : f32
      } : tensor<1x16x56x56x16xf32>
      graph.yield %25 : tensor<1x16x56x56x16xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 8, vectors = 3, chunk = 784, pack = false, passes = 1}> : tensor<1x16x56x56x16xf32>
    func.return %5 : tensor<1x16x56x56x16xf32>
  }
}
