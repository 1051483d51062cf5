// RUN: treadle-opt %s -p 'schedule-select{target="cpu{vector_bytes=64 vector_registers=32 cores=2}"}' | filecheck %s
// RUN: treadle-opt %s -p 'schedule-select{target="sm_80"}' | filecheck %s --check-prefix=GPU

// The columns of the second operand lie apart: packing them pays for long calls only. Panels of three vectors, as of 128
// rows alone, would leave a narrower last one.
// CHECK:      graph.fused "scores" {
// CHECK:      } schedule #schedule.dispatch<#schedule.tree<e0 <= {{[0-9]+}} ? 0 : 1>, [
// CHECK-SAME:     #schedule.use<"matmul_cpu", {rows = {{[0-9]+}}, vectors = 1, chunk = {{[0-9]+}}, pack = false, passes = 1}>,
// CHECK-SAME:     #schedule.use<"matmul_cpu", {rows = 8, vectors = 2, chunk = 128, pack = true, passes = 1}>],
// CHECK-SAME:     #schedule.predicted<[1] {{.*}}, [128] {{.*}}> requires
// One kernel is enough where tiles are shortened anyway.
// CHECK:      graph.fused "linear" {
// CHECK:      } schedule #schedule.use<"matmul_cpu",
// On a GPU small blocks, which no long call would take by default, serve the range alone as well as with large ones.
// GPU:        graph.fused "scores" {
// GPU:        } schedule #schedule.use<"matmul_simt", {warps = [1, 2], repeats = [1, 1], thread = [2, 2],
// GPU:        graph.fused "linear" {
// GPU:        } schedule #schedule.use<"matmul_simt",
func.func @main(%x: tensor<192x128x64xf32>, %w: tensor<192x128x64xf32>, %v: tensor<128x64xf32>, %u: tensor<64x480xf32>,
                %n: tensor<i64>) -> (tensor<192x128x128xf32>, tensor<128x480xf32>)
    attributes {symbols = ["n:1..128"], extents = ["n"]} {
  %y = graph.fused "scores" {
    %t = graph.compute (%b, %k, %j) {
      %a = graph.at %w[%b, %j, %k] : tensor<192x128x64xf32>
      graph.yield %a : f32
    } : tensor<192x64x128xf32>
    %m = graph.matmul %x, %t : (tensor<192x128x64xf32>, tensor<192x64x128xf32>) -> tensor<192x128x128xf32>
    graph.yield %m : tensor<192x128x128xf32>
  } requires [#graph.required<d1 < 0, d2 < 0>] : tensor<192x128x128xf32>
  %z = graph.fused "linear" {
    %m = graph.matmul %v, %u : (tensor<128x64xf32>, tensor<64x480xf32>) -> tensor<128x480xf32>
    graph.yield %m : tensor<128x480xf32>
  } requires [#graph.required<d0 < 0>] : tensor<128x480xf32>
  func.return %y, %z : tensor<192x128x128xf32>, tensor<128x480xf32>
}
