// silu(x * w) * (x * v) of 100 rows, 64 terms and 80 columns: one load of x serves both products.
// treadle run examples/tile_gated.mlir --target sm_80 --device emulator
builtin.module attributes {treadle.stage = "kernels"} {
  func.func @main(%x: tensor<100x64xf16>, %w: tensor<64x80xf16>, %v: tensor<64x80xf16>) -> tensor<100x80xf16>
      attributes {input_names = ["x", "w", "v"], output_names = ["y"]} {
    %y = loop.kernel @gated ins(%X = %x : tensor<100x64xf16>, %W = %w : tensor<64x80xf16>, %V = %v : tensor<64x80xf16>)
        outs(%Y : tensor<100x80xf16>) grid(%block in 4) threads(%thread in 128) {
      %tile_x = loop.alloc : memref<3x64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
      %tile_w = loop.alloc : memref<3x32x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
      %tile_v = loop.alloc : memref<3x32x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
      %steps = arith.constant 2 : index
      %side = arith.constant 32 : index
      %two = arith.constant 64 : index
      %zero = arith.constant 0.000000e+00 : f32
      %one = arith.constant 1.000000e+00 : f32
      task.for (%bi, %bj) in #task.map<spatial(2, 2)>(%block) {
        %i = arith.muli %bi, %two : index
        %j = arith.muli %bj, %two : index
        %warp = arith.divui %thread, %side : index
        task.for (%wi, %wj) in #task.map<spatial(2, 2)>(%warp) {
          %row = arith.muli %wi, %side : index
          %column = arith.muli %wj, %side : index
          %gate = tile.fragment at [%row, %column] : !tile.fragment<32x32xf32>
          %value = tile.fragment at [%row, %column] : !tile.fragment<32x32xf32>
          tile.pipelined %steps stages 3 start {
          ^bb0(%step : index, %stage : index):
            %k = arith.muli %step, %side : index
            tile.copy %X[%i, %k] to %tile_x[%stage] : memref<100x64xf16>, memref<3x64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
            tile.copy %W[%k, %j] to %tile_w[%stage] : memref<64x80xf16>, memref<3x32x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
            tile.copy %V[%k, %j] to %tile_v[%stage] : memref<64x80xf16>, memref<3x32x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
          } do {
          ^bb0(%step : index, %stage : index):
            tile.gemm %tile_x[%stage] * %tile_w[%stage] to %gate : memref<3x64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>, memref<3x32x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>, !tile.fragment<32x32xf32>
            tile.gemm %tile_x[%stage] * %tile_v[%stage] to %value : memref<3x64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>, memref<3x32x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>, !tile.fragment<32x32xf32>
          }
          tile.map %gate, %value to %gate {
          ^bb0(%g : f32, %u : f32, %r : index, %c : index):
            %minus = arith.subf %zero, %g : f32
            %power = math.exp %minus : f32
            %below = arith.addf %one, %power : f32
            %silu = arith.divf %g, %below : f32
            %product = arith.mulf %silu, %u : f32
            tile.yield %product : f32
          } : !tile.fragment<32x32xf32>, !tile.fragment<32x32xf32> -> !tile.fragment<32x32xf32>
          tile.store %gate to %Y[%i, %j] : !tile.fragment<32x32xf32>, memref<100x80xf16>
        }
      }
    }
    func.return %y : tensor<100x80xf16>
  }
}
