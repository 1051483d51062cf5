builtin.module attributes {schedule.record = {us = 1.152500e+02 : f64, default_us = 1.286800e+02 : f64, target = "cpu", hardware = "AMD EPYC 25-17-1 2 cores", compiler = "/usr/bin/cc", sources = "3b7d456dd8bf", date = "2026-11-26", in_model = "1.074x, in a model 1.019 times as fast"}} {
  schedule.program @nest5 for "cpu" {
    %i, %j, %k = schedule.axes 2 spatial, 1 reduction
    %registers_i, %registers_j = schedule.sample_tile "registers" 2 from ([1, 2, 4, 7, 8, 14, 16], [16, 32]) product 1 to 512 taken [7, 32]
    %tile_i, %tile_j = schedule.sample_tile "tile" 2 from ([1, 2, 4, 7, 8], [1]) beside (%registers_i, %registers_j) product 1 to 1024 taken [1, 1]
    %outer_i, %outer_j = schedule.sample_tile "outer" 2 from ([1, 2, 4, 7, 8, 14, 16], [1]) product 1 to 64 taken [8, 1]
    %i0, %i1, %i2, %i3 = schedule.split %i by (%outer_i, %tile_i, %registers_i)
    %j0, %j1, %j2, %j3 = schedule.split %j by (%outer_j, %tile_j, %registers_j)
    %depth_k = schedule.sample_tile "depth" 1 from [1, 3, 9, 27] product 1 to 512 taken [3]
    %k0, %k1 = schedule.split %k by (%depth_k)
    schedule.arrange block(%i0, %j0) repeat(%i1, %j1) loop(%k0) repeat(%i2, %j2) loop(%k1) repeat(%i3, %j3)
    schedule.stage 1 at %k0 in "register"
    schedule.mark vector %j3
    schedule.mark unroll %k1
  }
  func.func @main(%0: tensor<1x3x226x226xf32>, %1: tensor<1x27x32xf32>, %2: tensor<1x2x1x1x16xf32>) -> tensor<1x2x112x112x16xf32> {
    %3 = graph.fused "im2col_unpack_matmul_add_max_min" {
      %4 = graph.compute "im2col" (%5, %6) {
        %7 = arith.constant 0 : index
        %8 = arith.constant 112 : index
        %9 = arith.divui %5, %8 : index
        %10 = arith.remui %5, %8 : index
        %11 = arith.constant 9 : index
        %12 = arith.divui %6, %11 : index
        %13 = arith.constant 3 : index
        %14 = arith.divui %6, %13 : index
        %15 = arith.remui %14, %13 : index
        %16 = arith.remui %6, %13 : index
        %17 = arith.constant 2 : index
        %18 = arith.muli %9, %17 : index
        %19 = arith.addi %18, %15 : index
        %20 = arith.muli %10, %17 : index
        %21 = arith.addi %20, %16 : index
        %22 = graph.at %0[%7, %12, %19, %21] : tensor<1x3x226x226xf32>
        graph.yield %22 : f32
      } : tensor<12544x27xf32>
      %23 = graph.compute "unpack" (%24, %25) {
        %26 = arith.constant 0 : index
        %27 = graph.at %1[%26, %24, %25] : tensor<1x27x32xf32>
        graph.yield %27 : f32
      } : tensor<27x32xf32>
      %28 = graph.matmul %4, %23 : (tensor<12544x27xf32>, tensor<27x32xf32>) -> tensor<12544x32xf32>
      %29 = graph.compute "reshape transpose add max min" (%30, %31, %32, %33, %34) {
        %35 = arith.constant 0 : index
        %36 = arith.constant 112 : index
        %37 = arith.constant 16 : index
        %38 = arith.muli %32, %36 : index
        %39 = arith.addi %38, %33 : index
        %40 = arith.muli %31, %37 : index
        %41 = arith.addi %40, %34 : index
        %42 = graph.at %28[%39, %41] : tensor<12544x32xf32>
        %43 = graph.at %2[%35, %31, %35, %35, %34] : tensor<1x2x1x1x16xf32>
        %44 = arith.addf %42, %43 : f32
        %45 = arith.constant 0.000000e+00 : f32
        %46 = arith.maximumf %44, %45 : f32
        %47 = arith.constant 6.000000e+00 : f32
        %48 = arith.minimumf %46, %47 : f32
        graph.yield %48 : f32
      } : tensor<1x2x112x112x16xf32>
      graph.yield %29 : tensor<1x2x112x112x16xf32>
    } schedule @nest5 : tensor<1x2x112x112x16xf32>
    func.return %3 : tensor<1x2x112x112x16xf32>
  }
}
