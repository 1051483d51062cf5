// RUN: treadle-opt %s -p 'schedule-select{target="sm_80" construct=exhaustive}' | filecheck %s

// The default has block_k = 8 at every call; one that loads more terms at a time serves the whole range.
// CHECK: } schedule #schedule.use<"matmul_simt", {warps = {{.*}}, block_k = {{16|32}}, {{.*}}}> requires
func.func @main(%x: tensor<128x64xf32>, %w: tensor<64x96xf32>, %n: tensor<i64>) -> tensor<128x96xf32>
    attributes {symbols = ["n:1..128"], extents = ["n"]} {
  %y = graph.fused "product" {
    %m = graph.matmul %x, %w : (tensor<128x64xf32>, tensor<64x96xf32>) -> tensor<128x96xf32>
    graph.yield %m : tensor<128x96xf32>
  } requires [#graph.required<d0 < 0>] : tensor<128x96xf32>
  func.return %y : tensor<128x96xf32>
}
