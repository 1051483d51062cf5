builtin.module attributes {schedule.record = {us = 2.693100e+02 : f64, default_us = 2.889400e+02 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "421500967b2d", date = "2026-11-25", in_model = "1.091x, in a model 1.011 times as fast"}} {
  schedule.program @nest0 for "cpu" {
    %i, %j, %k = schedule.axes 2 spatial, 1 reduction
    %registers_i, %registers_j = schedule.sample_tile "registers" 2 from ([1, 2, 3, 4, 6, 7, 8, 12, 16], [16, 32, 48, 64]) product 1 to 512 taken [7, 64]
    %tile_i, %tile_j = schedule.sample_tile "tile" 2 from ([1, 2, 3, 4, 6, 7, 8], [1, 2, 4, 5]) beside (%registers_i, %registers_j) product 1 to 1024 taken [1, 1]
    %outer_i, %outer_j = schedule.sample_tile "outer" 2 from ([1, 2, 3], [1, 2]) product 1 to 64 taken [1, 1]
    %i0, %i1, %i2, %i3 = schedule.split %i by (%outer_i, %tile_i, %registers_i)
    %j0, %j1, %j2, %j3 = schedule.split %j by (%outer_j, %tile_j, %registers_j)
    %depth_k = schedule.sample_tile "depth" 1 from [1, 2, 4, 64, 80, 96, 120, 160, 192, 240, 320, 480] product 1 to 512 taken [320]
    %k0, %k1 = schedule.split %k by (%depth_k)
    schedule.arrange block(%i0, %j0) repeat(%i1, %j1) loop(%k0) repeat(%i2, %j2) loop(%k1) repeat(%i3, %j3)
    schedule.mark vector %j3
  }
  func.func @main(%0: tensor<5x960x64xf32>, %1: tensor<49x960xf32>, %2: tensor<1x20x1x1x16xf32>) -> tensor<49x320xf32> {
    %3 = graph.fused "unpack_matmul_add_im2col_6" {
      %4 = graph.compute "unpack" (%5, %6) {
        %7 = arith.constant 64 : index
        %8 = arith.divui %6, %7 : index
        %9 = arith.remui %6, %7 : index
        %10 = graph.at %0[%8, %5, %9] : tensor<5x960x64xf32>
        graph.yield %10 : f32
      } : tensor<960x320xf32>
      %11 = graph.matmul %1, %4 : (tensor<49x960xf32>, tensor<960x320xf32>) -> tensor<49x320xf32>
      %12 = graph.compute "reshape transpose add" (%13, %14, %15, %16, %17) {
        %18 = arith.constant 0 : index
        %19 = arith.constant 7 : index
        %20 = arith.constant 16 : index
        %21 = arith.muli %15, %19 : index
        %22 = arith.addi %21, %16 : index
        %23 = arith.muli %14, %20 : index
        %24 = arith.addi %23, %17 : index
        %25 = graph.at %11[%22, %24] : tensor<49x320xf32>
        %26 = graph.at %2[%18, %14, %18, %18, %17] : tensor<1x20x1x1x16xf32>
        %27 = arith.addf %25, %26 : f32
        graph.yield %27 : f32
      } : tensor<1x20x7x7x16xf32>
      %28 = graph.compute "im2col" (%29, %30) {
        %31 = arith.constant 0 : index
        %32 = arith.constant 7 : index
        %33 = arith.divui %29, %32 : index
        %34 = arith.remui %29, %32 : index
        %35 = arith.constant 16 : index
        %36 = arith.divui %30, %35 : index
        %37 = arith.remui %30, %35 : index
        %38 = graph.at %12[%31, %36, %33, %34, %37] : tensor<1x20x7x7x16xf32>
        graph.yield %38 : f32
      } : tensor<49x320xf32>
      graph.yield %28 : tensor<49x320xf32>
    } schedule @nest0 : tensor<49x320xf32>
    func.return %3 : tensor<49x320xf32>
  }
}
