builtin.module attributes {schedule.record = {us = 2.749450e+03 : f64, default_us = 2.749450e+03 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "865fe58bc4dd", date = "2026-11-26", in_model = "dropped: no time was left to confirm it in the model"}} {
  func.func @main(%0: tensor<1x18x35x35x16xf32>, %1: tensor<8x2592x48xf32>, %2: tensor<1x24x1x1x16xf32>) -> tensor<1x24x17x17x16xf32> {
    %3 = graph.fused "im2col_unpack_matmul_add_relu_15" {
      %4 = graph.compute "im2col" (%5, %6) {
        %7 = arith.constant 0 : index
        %8 = arith.constant 17 : index
        %9 = arith.divui %5, %8 : index
        %10 = arith.remui %5, %8 : index
        %11 = arith.constant 144 : index
        %12 = arith.divui %6, %11 : index
        %13 = arith.constant 48 : index
        %14 = arith.divui %6, %13 : index
        %15 = arith.constant 3 : index
        %16 = arith.remui %14, %15 : index
        %17 = arith.constant 16 : index
        %18 = arith.divui %6, %17 : index
        %19 = arith.remui %18, %15 : index
        %20 = arith.remui %6, %17 : index
        %21 = arith.constant 2 : index
        %22 = arith.muli %9, %21 : index
        %23 = arith.addi %22, %16 : index
        %24 = arith.muli %10, %21 : index
        %25 = arith.addi %24, %19 : index
        %26 = graph.at %0[%7, %12, %23, %25, %20] : tensor<1x18x35x35x16xf32>
        graph.yield %26 : f32
      } : tensor<289x2592xf32>
      %27 = graph.compute "unpack" (%28, %29) {
        %30 = arith.constant 48 : index
        %31 = arith.divui %29, %30 : index
        %32 = arith.remui %29, %30 : index
        %33 = graph.at %1[%31, %28, %32] : tensor<8x2592x48xf32>
        graph.yield %33 : f32
      } : tensor<2592x384xf32>
      %34 = graph.matmul %4, %27 : (tensor<289x2592xf32>, tensor<2592x384xf32>) -> tensor<289x384xf32>
      %35 = graph.compute "reshape transpose add relu" (%36, %37, %38, %39, %40) {
        %41 = arith.constant 0 : index
        %42 = arith.constant 17 : index
        %43 = arith.constant 16 : index
        %44 = arith.muli %38, %42 : index
        %45 = arith.addi %44, %39 : index
        %46 = arith.muli %37, %43 : index
        %47 = arith.addi %46, %40 : index
        %48 = graph.at %34[%45, %47] : tensor<289x384xf32>
        %49 = graph.at %2[%41, %37, %41, %41, %40] : tensor<1x24x1x1x16xf32>
        %50 = arith.addf %48, %49 : f32
        %51 = arith.constant 0.000000e+00 : f32
        %52 = arith.maximumf %50, %51 : f32
        graph.yield %52 : f32
      } : tensor<1x24x17x17x16xf32>
      graph.yield %35 : tensor<1x24x17x17x16xf32>
    } schedule #schedule.use<"matmul_cpu", {rows = 7, vectors = 3, chunk = 77, pack = false, passes = 1}> : tensor<1x24x17x17x16xf32>
    func.return %3 : tensor<1x24x17x17x16xf32>
  }
}
