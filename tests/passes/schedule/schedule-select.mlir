// RUN: treadle-opt %s -p 'schedule-select{target=cpu}' | filecheck %s --check-prefix=CPU
// RUN: treadle-opt %s -p 'schedule-select{target="sm_80"}' | filecheck %s --check-prefix=GPU
// RUN: treadle-opt %s -p 'schedule-select{target="sm_80{multiprocessors=1}"}' | filecheck %s --check-prefix=ONE

// CPU: graph.fused "product"
// CPU: } schedule #schedule.use<"matmul_cpu", {rows = {{[0-9]+}}, vectors = 4, chunk = {{[0-9]+}}, pack = {{[a-z]+}}, passes = {{[0-9]+[}]}}> : tensor<128x64xf32>
// GPU: graph.fused "product"
// ONE: } schedule #schedule.use<"matmul_simt", {warps = [2, 2], repeats = [2, 1], thread = [4, 4],
// GPU: } schedule #schedule.use<"matmul_simt", {warps = [1, 2], repeats = [1, 1], thread = [2, 2], block_k = 8, min_blocks_per_sm = 1, a_order = "k", b_order = "n", a_vector = 4, b_vector = 4, split_k = 1}> : tensor<128x64xf32>
func.func @product(%x: tensor<128x96xf32>, %w: tensor<96x64xf32>) -> tensor<128x64xf32> {
  %y = graph.fused "product" {
    %m = graph.matmul %x, %w : (tensor<128x96xf32>, tensor<96x64xf32>) -> tensor<128x64xf32>
    graph.yield %m : tensor<128x64xf32>
  } : tensor<128x64xf32>
  func.return %y : tensor<128x64xf32>
}

// Tensor cores multiply halves.
// CPU: } schedule #schedule.use<"matmul_cpu",
// ONE: } schedule #schedule.use<"matmul_mma", {block = [128, 64],
// GPU: } schedule #schedule.use<"matmul_mma", {block = [32, 64], warps = [2, 2], block_k = 32, stages = 5, group = 1, fragments = 1, split_k = 1}>
func.func @halves(%x: tensor<128x96xf16>, %w: tensor<96x64xf16>) -> tensor<128x64xf16> {
  %y = graph.fused "halves" {
    %m = graph.matmul %x, %w : (tensor<128x96xf16>, tensor<96x64xf16>) -> tensor<128x64xf16>
    graph.yield %m : tensor<128x64xf16>
  } : tensor<128x64xf16>
  func.return %y : tensor<128x64xf16>
}

// The reduction is the anchor, not the pointwise operator behind it.
// CPU: graph.fused "norm"
// CPU: } schedule #schedule.use<"reduce_cpu", {lanes = 64, rows = 1}> : tensor<4xf32>
// GPU: graph.fused "norm"
// GPU: } schedule #schedule.use<"reduce_cuda", {threads = 128, outputs = 1}> : tensor<4xf32>
func.func @norm(%x: tensor<4x300xf32>) -> tensor<4xf32> {
  %y = graph.fused "norm" {
    %s = graph.compute (%i) {
      %t = graph.reduce add (%k in 300) {
        %a = graph.at %x[%i, %k] : tensor<4x300xf32>
        %b = arith.mulf %a, %a : f32
        graph.yield %b : f32
      }
      graph.yield %t : f32
    } : tensor<4xf32>
    %r = graph.compute (%i) {
      %a = graph.at %s[%i] : tensor<4xf32>
      %b = math.sqrt %a : f32
      graph.yield %b : f32
    } : tensor<4xf32>
    graph.yield %r : tensor<4xf32>
  } : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// A decision that is there stays.
// CPU: } schedule #schedule.use<"generic_cpu", {run = 16, rows = 2}> : tensor<32xf32>
// GPU: } schedule #schedule.use<"generic_cpu", {run = 16, rows = 2}> : tensor<32xf32>
func.func @decided(%x: tensor<32xf32>) -> tensor<32xf32> {
  %y = graph.fused "exp" {
    %e = graph.compute (%i) {
      %a = graph.at %x[%i] : tensor<32xf32>
      %b = math.exp %a : f32
      graph.yield %b : f32
    } : tensor<32xf32>
    graph.yield %e : tensor<32xf32>
  } schedule #schedule.use<"generic_cpu", {run = 16, rows = 2}> : tensor<32xf32>
  func.return %y : tensor<32xf32>
}
