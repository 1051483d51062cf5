builtin.module attributes {schedule.record = {us = 1.049000e+02 : f64, default_us = 1.108700e+02 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "3b7d456dd8bf", date = "2026-11-26", in_model = "1.066x, in a model 1.019 times as fast"}} {
  schedule.program @nest0 for "cpu" {
    %i, %j, %k = schedule.axes 2 spatial, 1 reduction
    %registers_i, %registers_j = schedule.sample_tile "registers" 2 from ([1, 2, 4, 7, 8, 14, 16], [16, 32, 48, 64]) product 1 to 512 taken [7, 48]
    %tile_i, %tile_j = schedule.sample_tile "tile" 2 from ([1, 2, 4, 7, 8], [1, 2, 3]) beside (%registers_i, %registers_j) product 1 to 1024 taken [1, 1]
    %outer_i, %outer_j = schedule.sample_tile "outer" 2 from ([1, 2, 4, 7, 8, 14, 16], [1, 2]) product 1 to 64 taken [16, 1]
    %i0, %i1, %i2, %i3 = schedule.split %i by (%outer_i, %tile_i, %registers_i)
    %j0, %j1, %j2, %j3 = schedule.split %j by (%outer_j, %tile_j, %registers_j)
    %depth_k = schedule.sample_tile "depth" 1 from [1, 2, 3, 4, 6, 8, 12, 24] product 1 to 512 taken [6]
    %k0, %k1 = schedule.split %k by (%depth_k)
    schedule.arrange block(%i0, %j0) repeat(%i1, %j1) loop(%k0) repeat(%i2, %j2) loop(%k1) repeat(%i3, %j3)
    schedule.mark vector %j3
  }
  func.func @main(%0: tensor<1x2x56x56x16xf32>, %1: tensor<3x24x48xf32>, %2: tensor<1x9x1x1x16xf32>) -> tensor<1x9x56x56x16xf32> {
    %3 = graph.fused "im2col_unpack_matmul_add_max_min_2" {
      %4 = graph.compute "im2col" (%5, %6) {
        %7 = arith.constant 0 : index
        %8 = arith.constant 56 : index
        %9 = arith.divui %5, %8 : index
        %10 = arith.remui %5, %8 : index
        %11 = arith.constant 16 : index
        %12 = arith.divui %6, %11 : index
        %13 = arith.remui %6, %11 : index
        %14 = graph.at %0[%7, %12, %9, %10, %13] : tensor<1x2x56x56x16xf32>
        graph.yield %14 : f32
      } : tensor<3136x24xf32>
      %15 = graph.compute "unpack" (%16, %17) {
        %18 = arith.constant 48 : index
        %19 = arith.divui %17, %18 : index
        %20 = arith.remui %17, %18 : index
        %21 = graph.at %1[%19, %16, %20] : tensor<3x24x48xf32>
        graph.yield %21 : f32
      } : tensor<24x144xf32>
      %22 = graph.matmul %4, %15 : (tensor<3136x24xf32>, tensor<24x144xf32>) -> tensor<3136x144xf32>
      %23 = graph.compute "reshape transpose add max min" (%24, %25, %26, %27, %28) {
        %29 = arith.constant 0 : index
        %30 = arith.constant 56 : index
        %31 = arith.constant 16 : index
        %32 = arith.muli %26, %30 : index
        %33 = arith.addi %32, %27 : index
        %34 = arith.muli %25, %31 : index
        %35 = arith.addi %34, %28 : index
        %36 = graph.at %22[%33, %35] : tensor<3136x144xf32>
        %37 = graph.at %2[%29, %25, %29, %29, %28] : tensor<1x9x1x1x16xf32>
        %38 = arith.addf %36, %37 : f32
        %39 = arith.constant 0.000000e+00 : f32
        %40 = arith.maximumf %38, %39 : f32
        %41 = arith.constant 6.000000e+00 : f32
        %42 = arith.minimumf %40, %41 : f32
        graph.yield %42 : f32
      } : tensor<1x9x56x56x16xf32>
      graph.yield %23 : tensor<1x9x56x56x16xf32>
    } schedule @nest0 : tensor<1x9x56x56x16xf32>
    func.return %3 : tensor<1x9x56x56x16xf32>
  }
}
