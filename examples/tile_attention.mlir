// softmax(Q * K^T / 8) * V of two heads, 70 queries and 90 keys of 48 elements: a block has 64 queries of a head, each
// of its four warps 16, and keys come 64 at a time. Source: Dao, "FlashAttention-2", ICLR 2024, algorithm 1.
// treadle run examples/tile_attention.mlir --target sm_80 --device emulator
builtin.module attributes {treadle.stage = "kernels"} {
  func.func @main(%q: tensor<2x70x48xf16>, %k: tensor<2x90x48xf16>, %v: tensor<2x90x40xf16>) -> tensor<2x70x40xf16>
      attributes {input_names = ["q", "k", "v"], output_names = ["y"]} {
    %y = loop.kernel @attention ins(%Q = %q : tensor<2x70x48xf16>, %K = %k : tensor<2x90x48xf16>, %V = %v : tensor<2x90x40xf16>)
        outs(%Y : tensor<2x70x40xf16>) grid(%block in 4) threads(%thread in 128) {
      %queries = loop.alloc : memref<64x48xf16, #loop.swizzle<8, 4, 2>, #loop.space<shared>>
      %keys = loop.alloc : memref<2x64x48xf16, #loop.swizzle<8, 4, 2>, #loop.space<shared>>
      %values = loop.alloc : memref<2x64x48xf16, #loop.swizzle<8, 4, 2>, #loop.space<shared>>
      %zero = arith.constant 0 : index
      %steps = arith.constant 2 : index
      %height = arith.constant 16 : index
      %width = arith.constant 64 : index
      %lanes = arith.constant 32 : index
      %count = arith.constant 90 : index
      %hidden = arith.constant 0xFF800000 : f32
      %scale = arith.constant 1.250000e-01 : f32
      %one = arith.constant 1.000000e+00 : f32
      task.for (%head, %part) in #task.map<spatial(2, 2)>(%block) {
        %first = arith.muli %part, %width : index
        %warp = arith.divui %thread, %lanes : index
        %row = arith.muli %warp, %height : index
        %result = tile.fragment at [%row, %zero] : !tile.fragment<16x48xf32>
        %largest = tile.fragment at [%row, %zero] : !tile.fragment<16x1xf32>
        %total = tile.fragment at [%row, %zero] : !tile.fragment<16x1xf32>
        tile.map to %largest {
        ^bb0(%i : index, %j : index):
          tile.yield %hidden : f32
        } : -> !tile.fragment<16x1xf32>
        tile.copy %Q[%head, %first, %zero] to %queries[] : memref<2x70x48xf16>, memref<64x48xf16, #loop.swizzle<8, 4, 2>, #loop.space<shared>>
        loop.commit
        tile.pipelined %steps stages 2 start {
        ^bb0(%step : index, %stage : index):
          %key = arith.muli %step, %width : index
          tile.copy %K[%head, %key, %zero] to %keys[%stage] : memref<2x90x48xf16>, memref<2x64x48xf16, #loop.swizzle<8, 4, 2>, #loop.space<shared>>
          tile.copy %V[%head, %key, %zero] to %values[%stage] : memref<2x90x40xf16>, memref<2x64x48xf16, #loop.swizzle<8, 4, 2>, #loop.space<shared>>
        } do {
        ^bb0(%step : index, %stage : index):
          %key = arith.muli %step, %width : index
          %of_queries = tile.operand %queries[] at %row : memref<64x48xf16, #loop.swizzle<8, 4, 2>, #loop.space<shared>> -> !tile.operand<16x48xf16>
          %scores = tile.fragment at [%row, %zero] : !tile.fragment<16x64xf32>
          tile.gemm %of_queries[] * %keys[%stage] to %scores transpose_b : !tile.operand<16x48xf16>, memref<2x64x48xf16, #loop.swizzle<8, 4, 2>, #loop.space<shared>>, !tile.fragment<16x64xf32>
          tile.map %scores to %scores {
          ^bb0(%score : f32, %i : index, %j : index):
            %at = arith.addi %key, %j : index
            %exists = arith.cmpi slt, %at, %count : index
            %scaled = arith.mulf %score, %scale : f32
            %visible = arith.select %exists, %scaled, %hidden : f32
            tile.yield %visible : f32
          } : !tile.fragment<16x64xf32> -> !tile.fragment<16x64xf32>
          %peak = tile.fragment at [%row, %zero] : !tile.fragment<16x1xf32>
          tile.reduce max %scores to %peak : !tile.fragment<16x64xf32>, !tile.fragment<16x1xf32>
          tile.map %peak, %largest to %peak {
          ^bb0(%new : f32, %old : f32, %i : index, %j : index):
            %both = arith.maximumf %new, %old : f32
            tile.yield %both : f32
          } : !tile.fragment<16x1xf32>, !tile.fragment<16x1xf32> -> !tile.fragment<16x1xf32>
          %shrink = tile.fragment at [%row, %zero] : !tile.fragment<16x1xf32>
          tile.map %largest, %peak to %shrink {
          ^bb0(%old : f32, %new : f32, %i : index, %j : index):
            %power = arith.subf %old, %new : f32
            %factor = math.exp %power : f32
            tile.yield %factor : f32
          } : !tile.fragment<16x1xf32>, !tile.fragment<16x1xf32> -> !tile.fragment<16x1xf32>
          tile.map %peak to %largest {
          ^bb0(%new : f32, %i : index, %j : index):
            tile.yield %new : f32
          } : !tile.fragment<16x1xf32> -> !tile.fragment<16x1xf32>
          tile.map %scores, %largest to %scores {
          ^bb0(%score : f32, %base : f32, %i : index, %j : index):
            %power = arith.subf %score, %base : f32
            %weight = math.exp %power : f32
            tile.yield %weight : f32
          } : !tile.fragment<16x64xf32>, !tile.fragment<16x1xf32> -> !tile.fragment<16x64xf32>
          %sums = tile.fragment at [%row, %zero] : !tile.fragment<16x1xf32>
          tile.reduce add %scores to %sums : !tile.fragment<16x64xf32>, !tile.fragment<16x1xf32>
          tile.map %total, %shrink, %sums to %total {
          ^bb0(%old : f32, %factor : f32, %sum : f32, %i : index, %j : index):
            %kept = arith.mulf %old, %factor : f32
            %new = arith.addf %kept, %sum : f32
            tile.yield %new : f32
          } : !tile.fragment<16x1xf32>, !tile.fragment<16x1xf32>, !tile.fragment<16x1xf32> -> !tile.fragment<16x1xf32>
          tile.map %result, %shrink to %result {
          ^bb0(%old : f32, %factor : f32, %i : index, %j : index):
            %kept = arith.mulf %old, %factor : f32
            tile.yield %kept : f32
          } : !tile.fragment<16x48xf32>, !tile.fragment<16x1xf32> -> !tile.fragment<16x48xf32>
          %weights = tile.round %scores : !tile.fragment<16x64xf32> -> !tile.operand<16x64xf16>
          tile.gemm %weights[] * %values[%stage] to %result : !tile.operand<16x64xf16>, memref<2x64x48xf16, #loop.swizzle<8, 4, 2>, #loop.space<shared>>, !tile.fragment<16x48xf32>
        }
        tile.map %result, %total to %result {
        ^bb0(%sum : f32, %of_row : f32, %i : index, %j : index):
          %mean = arith.divf %sum, %of_row : f32
          tile.yield %mean : f32
        } : !tile.fragment<16x48xf32>, !tile.fragment<16x1xf32> -> !tile.fragment<16x48xf32>
        tile.store %result to %Y[%head, %first, %zero] : !tile.fragment<16x48xf32>, memref<2x70x40xf16>
      }
    }
    func.return %y : tensor<2x70x40xf16>
  }
}
