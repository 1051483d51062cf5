// RUN: treadle-opt %s -p 'schedule-instantiate{target=cpu}' | filecheck %s
// RUN: treadle-opt %s -p 'schedule-instantiate{target=cpu},loop-fuse-prologue,loop-fuse-epilogue,loop-skip-padding,memory-plan' | filecheck %s --check-prefix=PLAN

// A decision with a tree becomes a group for each alternative, and then launches of which a call runs one.
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x48xf32>, %n: tensor<i64>) -> tensor<64x48xf32>
    attributes {extents = ["n"]} {
  %y = graph.fused "product" {
    %m = graph.matmul %x, %w : (tensor<64x32xf32>, tensor<32x48xf32>) -> tensor<64x48xf32>
    graph.yield %m : tensor<64x48xf32>
  } schedule #schedule.dispatch<#schedule.tree<e0 <= 8 ? 0 : 1>, [
      #schedule.use<"matmul_cpu", {rows = 4, vectors = 1, chunk = 16, pack = false, passes = 1}>,
      #schedule.use<"matmul_cpu", {rows = 2, vectors = 1, chunk = 64, pack = true, passes = 1}>],
      #schedule.predicted<[1] 1.0 [1.0, inf, 1.0]>>
    requires [#graph.required<d0 < 0>] : tensor<64x48xf32>
  func.return %y : tensor<64x48xf32>
}

// CHECK:      loop.dispatch #schedule.tree<e0 <= 8 ? 0 : 1> (%n : tensor<i64>) {
// CHECK:        graph.fused "product"
// CHECK:          loop.kernel @product
// CHECK-NOT:    schedule #schedule
// CHECK:        requires [#graph.required<d0 < 0>]
// CHECK:        graph.fused "product"
// CHECK:          loop.kernel @product
// CHECK:        requires [#graph.required<d0 < 0>]
// CHECK:      predicted = #schedule.predicted<[1] 1.000000e+00 [1.000000e+00, inf, 1.000000e+00]>

// PLAN:       loop.func @[[SHORT:[a-z_0-9]+]](
// PLAN:       loop.func @[[LONG:[a-z_0-9]+]](
// PLAN:       host.dispatch #schedule.tree<e0 <= 8 ? 0 : 1>
// PLAN-NEXT:    host.launch @[[SHORT]](
// PLAN-NEXT:    host.launch @[[LONG]](
