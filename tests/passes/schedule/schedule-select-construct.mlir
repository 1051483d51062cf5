// RUN: treadle-opt %s -p 'schedule-select{target="sm_80" construct=exhaustive}' | filecheck %s
// RUN: not treadle-opt %s -p 'schedule-select{target="sm_80" construct=best}' 2>&1 | filecheck %s --check-prefix=ERROR

// The default has warps = [1, 2] and block_k = 8.
// CHECK: schedule #schedule.use<"matmul_simt", {warps = {{.*}}, block_k = {{16|32}}
// ERROR: unknown construction 'best'; accepted: default, walk, walk-paper, greedy, exhaustive, evolution, evolution-annealed
func.func @product(%x: tensor<128x96xf32>, %w: tensor<96x64xf32>) -> tensor<128x64xf32> {
  %y = graph.fused "product" {
    %m = graph.matmul %x, %w : (tensor<128x96xf32>, tensor<96x64xf32>) -> tensor<128x64xf32>
    graph.yield %m : tensor<128x64xf32>
  } : tensor<128x64xf32>
  func.return %y : tensor<128x64xf32>
}
