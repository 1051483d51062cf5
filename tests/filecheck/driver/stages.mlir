// RUN: treadle-opt %s --from define --to schedule | filecheck %s
// RUN: treadle-opt %s --pipeline sm_80 --from define --to schedule | filecheck %s --check-prefix=GPU

func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = graph.compute (%i, %j) {
    %0 = graph.at %x[%i, %j] : tensor<4x8xf32>
    %1 = math.exp %0 : f32
    graph.yield %1 : f32
  } : tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// CHECK: graph.fused
// CHECK: schedule #schedule.use<"{{.*}}_cpu"
// GPU: schedule #schedule.use<"{{.*}}_cuda"
