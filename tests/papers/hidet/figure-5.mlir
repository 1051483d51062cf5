// RUN: treadle-opt %s -p 'schedule-instantiate{target=sm_80}' | filecheck %s

// Hidet (ASPLOS 2023), figure 5: double buffering, in the template's own kernel. K = 1024 in tiles of 8: 128 of them.
// SmemA is kept transposed and padded (`simt_tile.py` says why); RegsA and RegsB are next_a and next_b,
// RegsC is acc. Tile 0 goes to buffer 0.
// CHECK-LABEL: loop.kernel @matmul
// CHECK-SAME:    threads(%thread in 128)
// CHECK:         %shared_a = loop.alloc : memref<2x8x{{[0-9]+}}xf32, #loop.space<shared>>
// CHECK:         %shared_b = loop.alloc : memref<2x8x{{[0-9]+}}xf32, #loop.space<shared>>
// CHECK:         loop.load %A
// CHECK:         loop.load %B
// CHECK:         [[ZERO:%[a-z0-9_]+]] = arith.constant 0 : index
// CHECK:         loop.store {{.*}}, %shared_a{{\[}}[[ZERO]],
// CHECK:         loop.store {{.*}}, %shared_b{{\[}}[[ZERO]],
// CHECK:         loop.barrier

// The loop over the other tiles: for k0 in 0..126.
// CHECK-NEXT:    [[FIRST:%[a-z0-9_]+]] = arith.constant 0 : index
// CHECK-NEXT:    [[END:%[a-z0-9_]+]] = arith.constant 127 : index
// CHECK-NEXT:    [[ONE:%[a-z0-9_]+]] = arith.constant 1 : index
// CHECK-NEXT:    scf.for %step = [[FIRST]] to [[END]] step [[ONE]] {
// (1) Tile k0 + 1: global memory to registers.
// CHECK:           [[NEXT:%[a-z0-9_]+]] = arith.addi %step,
// CHECK:           loop.load %A
// CHECK:           loop.store {{.*}}, %next_a
// CHECK:           loop.load %B
// CHECK:           loop.store {{.*}}, %next_b
// (2) block_mma on buffer p = k0 % 2.
// CHECK:           [[TWO:%[a-z0-9_]+]] = arith.constant 2 : index
// CHECK-NEXT:      [[P:%[a-z0-9_]+]] = arith.remui %step, [[TWO]] : index
// CHECK:           scf.for
// CHECK:             loop.load %shared_a{{\[}}[[P]],
// CHECK:             loop.load %shared_b{{\[}}[[P]],
// CHECK:             arith.mulf
// CHECK:             loop.store {{.*}}, %acc
// (3) Registers to buffer q = (k0 + 1) % 2.
// CHECK:           [[TWO_AGAIN:%[a-z0-9_]+]] = arith.constant 2 : index
// CHECK-NEXT:      [[Q:%[a-z0-9_]+]] = arith.remui [[NEXT]], [[TWO_AGAIN]] : index
// CHECK:           loop.load %next_a
// CHECK:           loop.store {{.*}}, %shared_a{{\[}}[[Q]],
// CHECK:           loop.load %next_b
// CHECK:           loop.store {{.*}}, %shared_b{{\[}}[[Q]],
// CHECK:           loop.barrier
// CHECK-NEXT:    }

// The last block_mma, of tile 127, which lies in buffer 1; nothing is loaded or waited for any more.
// CHECK-NEXT:    [[LAST:%[a-z0-9_]+]] = arith.constant 1 : index
// CHECK:         scf.for
// CHECK-NOT:       loop.load %A
// CHECK:           loop.load %shared_a{{\[}}[[LAST]],
// CHECK:           loop.load %shared_b{{\[}}[[LAST]],
// CHECK-NOT:       loop.barrier
// CHECK:         loop.store {{.*}}, %C
func.func @figure_5(%a: tensor<64x1024xf32>, %b: tensor<1024x64xf32>) -> tensor<64x64xf32> {
  %y = graph.fused "matmul" {
    %m = graph.matmul %a, %b : (tensor<64x1024xf32>, tensor<1024x64xf32>) -> tensor<64x64xf32>
    graph.yield %m : tensor<64x64xf32>
  } schedule #schedule.use<"matmul_simt", {warps = [2, 2], repeats = [2, 1], thread = [4, 4], block_k = 8, min_blocks_per_sm = 1, a_order = "k", b_order = "n", a_vector = 4, b_vector = 4, split_k = 1}> : tensor<64x64xf32>
  func.return %y : tensor<64x64xf32>
}
