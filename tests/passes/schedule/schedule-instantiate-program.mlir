// RUN: treadle-opt %s -p 'schedule-instantiate{target=cpu}' | filecheck %s

// CHECK-NOT: schedule.program
schedule.program @tiled for "cpu" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %r = schedule.sample "rows" from [4, 8] taken 4
  %i0, %i1 = schedule.split %i by (%r)
  %j0, %j1 = schedule.split %j by (32)
  schedule.arrange block(%i0, %j0) loop(%k) repeat(%i1, %j1)
  schedule.mark vector %j1
}
schedule.program @chosen for "cpu" {
  %p = schedule.sample "pack" from [true, false] taken true
  schedule.template "matmul_cpu" {rows = 2, vectors = 2, chunk = 4, pack = %p, passes = 1}
}

// Two blocks along the rows, the second of which overhangs by 2: their loads are clamped, their stores predicated.
// CHECK: loop.kernel @product ins(%A = %x : {{.*}}, %B = %w : {{.*}}) outs(%C : tensor<6x32xf32>) grid(%block in 2) threads(%thread in 1) operations 6144 comment "nest of tensor<6x32xf32>"
// CHECK: %acc = loop.alloc : memref<4x32xf32, #loop.space<register>>
// CHECK: task.for (%i0, %j1) in #task.map<repeat(4, 32)> unroll {
// CHECK: scf.for %k
// CHECK: arith.minsi
// CHECK: task.for
// CHECK: arith.cmpi slt
// CHECK: loop.store {{.*}}, %C[{{.*}}]
func.func @main(%x: tensor<6x16xf32>, %w: tensor<16x32xf32>) -> (tensor<6x32xf32>, tensor<6x32xf32>) {
  %y = graph.fused "product" {
    %m = graph.matmul %x, %w : (tensor<6x16xf32>, tensor<16x32xf32>) -> tensor<6x32xf32>
    graph.yield %m : tensor<6x32xf32>
  } schedule @tiled : tensor<6x32xf32>
  // CHECK: loop.kernel @again
  // CHECK: comment "C[6, 32] = A[6, 16] * B[16, 32]"
  // CHECK: %panel = loop.alloc
  %z = graph.fused "again" {
    %m = graph.matmul %x, %w : (tensor<6x16xf32>, tensor<16x32xf32>) -> tensor<6x32xf32>
    graph.yield %m : tensor<6x32xf32>
  } schedule @chosen : tensor<6x32xf32>
  func.return %y, %z : tensor<6x32xf32>, tensor<6x32xf32>
}
