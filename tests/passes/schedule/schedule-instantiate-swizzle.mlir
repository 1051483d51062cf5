// RUN: treadle-opt %s -p 'schedule-instantiate{target=sm_80}' | filecheck %s

schedule.program @tiles for "cuda" {
  %i, %j = schedule.axes 2 spatial, 0 reduction
  %i0, %i1 = schedule.split %i by (8)
  %j0, %j1 = schedule.split %j by (4)
  schedule.arrange block(%i0, %j0) thread(%i1, %j1)
  schedule.swizzle %i0, %j0 by 4
}

// Six rows of three tiles: a group of four rows, blocks 0 to 11, and one of two.
// CHECK: loop.kernel @relu {{.*}} grid(%block in 18) threads(%thread in 32)
// CHECK: %[[INNER:.*]] = arith.remui %block, %{{.*}} : index
// CHECK: %[[GROUP:.*]] = arith.divui %block, %{{.*}} : index
// CHECK: %[[FIRST:.*]] = arith.muli %[[GROUP]], %{{.*}} : index
// CHECK: %[[DOWN:.*]] = arith.remui %[[INNER]], %{{.*}} : index
// CHECK: %[[ROW:.*]] = arith.addi %[[DOWN]], %[[FIRST]] : index
// CHECK: %[[COLUMN:.*]] = arith.divui %[[INNER]], %{{.*}} : index
// CHECK: %[[TWELVE:.*]] = arith.constant 12 : index
// CHECK: %[[FULL:.*]] = arith.cmpi slt, %block, %[[TWELVE]] : index
// CHECK: %[[I:.*]] = arith.select %[[FULL]], %[[ROW]], %{{.*}} : index
// CHECK: %[[J:.*]] = arith.select %[[FULL]], %[[COLUMN]], %{{.*}} : index
// CHECK: arith.muli %[[I]], %{{.*}} : index
// CHECK: arith.muli %[[J]], %{{.*}} : index
func.func @main(%x: tensor<48x12xf32>) -> tensor<48x12xf32> {
  %y = graph.fused "relu" {
    %r = graph.compute "relu" (%i, %j) {
      %zero = arith.constant 0.0 : f32
      %a = graph.at %x[%i, %j] : tensor<48x12xf32>
      %b = arith.maximumf %a, %zero : f32
      graph.yield %b : f32
    } : tensor<48x12xf32>
    graph.yield %r : tensor<48x12xf32>
  } schedule @tiles : tensor<48x12xf32>
  func.return %y : tensor<48x12xf32>
}
