// RUN: treadle-opt %s -p 'schedule-instantiate{target=cpu}' | filecheck %s

// The anchor becomes a kernel of the chosen template; its neighbours stay, and the decision is gone.
// CHECK-LABEL: func.func @product
// CHECK:         %y = graph.fused "matmul_relu" {
// CHECK-NEXT:      %m = loop.kernel @matmul_relu ins(%A = %x : tensor<6x5xf32>, %B = %w : tensor<5x32xf32>) outs(%C : tensor<6x32xf32>)
// CHECK-SAME:          grid(%block in 3) threads(%thread in 1) operations 2112 comment "C[6, 32] = A[6, 5] * B[5, 32]" {
// CHECK:             scf.for %m_1 =
// CHECK:               %acc = loop.alloc : memref<2x32xf32, #loop.space<register>>
// CHECK:               scf.for %k =
// CHECK-NEXT:            task.for (%r{{[_0-9]*}}, %n{{[_0-9]*}}) in #task.map<repeat(2, 32)> unroll {
// CHECK:               loop.store {{.*}}, %C[{{.*}}] : memref<6x32xf32>
// CHECK:           graph.compute "relu"
// CHECK:             graph.at %m
// CHECK:         } : tensor<6x32xf32>
func.func @product(%x: tensor<6x5xf32>, %w: tensor<5x32xf32>) -> tensor<6x32xf32> {
  %y = graph.fused "matmul_relu" {
    %m = graph.matmul %x, %w : (tensor<6x5xf32>, tensor<5x32xf32>) -> tensor<6x32xf32>
    %r = graph.compute "relu" (%i, %j) {
      %zero = arith.constant 0.0 : f32
      %a = graph.at %m[%i, %j] : tensor<6x32xf32>
      %b = arith.maximumf %a, %zero : f32
      graph.yield %b : f32
    } : tensor<6x32xf32>
    graph.yield %r : tensor<6x32xf32>
  } schedule #schedule.use<"matmul_cpu", {rows = 2, vectors = 2, chunk = 2, pack = false, passes = 1}> : tensor<6x32xf32>
  func.return %y : tensor<6x32xf32>
}

// Every access to the partial results is in a task loop of all lanes; the last fold reads their copy.
// CHECK-LABEL: func.func @sum
// CHECK:         %part = loop.alloc : memref<16xf32, #loop.space<register>>
// CHECK:         loop.store {{.*}}, %part[%lane]
// CHECK:         scf.for %k =
// CHECK:           loop.load %part[%lane{{.*}}]
// CHECK:         %lanes = loop.alloc : memref<16xf32, #loop.space<register>>
// CHECK:           [[V:%[a-z0-9_]+]] = loop.load %part
// CHECK-NEXT:      loop.store [[V]], %lanes
// CHECK:         scf.for {{.*}} iter_args(
// CHECK-NEXT:      loop.load %lanes
// CHECK-NOT:     loop.load %part
func.func @sum(%x: tensor<4x35xf32>) -> tensor<4xf32> {
  %y = graph.fused "sum" {
    %s = graph.compute (%i) {
      %t = graph.reduce add (%k in 35) {
        %a = graph.at %x[%i, %k] : tensor<4x35xf32>
        graph.yield %a : f32
      }
      graph.yield %t : f32
    } : tensor<4xf32>
    graph.yield %s : tensor<4xf32>
  } schedule #schedule.use<"reduce_cpu", {lanes = 16, rows = 1}> : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// A group without a decision is left alone.
// CHECK-LABEL: func.func @undecided
// CHECK:         graph.compute
func.func @undecided(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = graph.fused "copy" {
    %s = graph.compute (%i) {
      %a = graph.at %x[%i] : tensor<4xf32>
      graph.yield %a : f32
    } : tensor<4xf32>
    graph.yield %s : tensor<4xf32>
  } : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
