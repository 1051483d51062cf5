// C[100, 72] = A[100, 200] * B[200, 72] on tensor cores: four warps share 64 x 64 of C, in steps of 32 terms.
// treadle run examples/tile_product.mlir --target sm_80 --device emulator
builtin.module attributes {treadle.stage = "kernels"} {
  func.func @main(%a: tensor<100x200xf16>, %b: tensor<200x72xf16>) -> tensor<100x72xf16>
      attributes {input_names = ["a", "b"], output_names = ["c"]} {
    %c = loop.kernel @product ins(%A = %a : tensor<100x200xf16>, %B = %b : tensor<200x72xf16>)
        outs(%C : tensor<100x72xf16>) grid(%block in 4) threads(%thread in 128) {
      %tile_a = loop.alloc : memref<3x64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
      %tile_b = loop.alloc : memref<3x32x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
      %steps = arith.constant 7 : index
      %side = arith.constant 32 : index
      task.for (%bi, %bj) in #task.map<spatial(2, 2)>(%block) {
        %two = arith.constant 64 : index
        %i = arith.muli %bi, %two : index
        %j = arith.muli %bj, %two : index
        %warp = arith.divui %thread, %side : index
        task.for (%wi, %wj) in #task.map<spatial(2, 2)>(%warp) {
          %row = arith.muli %wi, %side : index
          %column = arith.muli %wj, %side : index
          %sums = tile.fragment at [%row, %column] : !tile.fragment<32x32xf32>
          tile.pipelined %steps stages 3 start {
          ^bb0(%step : index, %stage : index):
            %k = arith.muli %step, %side : index
            tile.copy %A[%i, %k] to %tile_a[%stage] : memref<100x200xf16>, memref<3x64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
            tile.copy %B[%k, %j] to %tile_b[%stage] : memref<200x72xf16>, memref<3x32x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
          } do {
          ^bb0(%step : index, %stage : index):
            tile.gemm %tile_a[%stage] * %tile_b[%stage] to %sums : memref<3x64x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>, memref<3x32x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>, !tile.fragment<32x32xf32>
          }
          tile.store %sums to %C[%i, %j] : !tile.fragment<32x32xf32>, memref<100x72xf16>
        }
      }
    }
    func.return %c : tensor<100x72xf16>
  }
}
