// RUN: treadle-opt %s -p memory-plan | filecheck %s

// The body of a loop is planned as @main is. Behind the loop's results in the arena are the second state, the counter,
// the body's own arena (64 bytes for %h) and its condition; what is read before and behind the loop lives as long.

func.func private @body(%n: tensor<i64>, %s: tensor<4xf32>, %w: tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>) {
  %h = loop.kernel @first ins(%A = %s : tensor<4xf32>) outs(%C : tensor<4xf32>) grid(%b in 1) threads(%t in 4) {
    %v = memref.load %A[%t] : memref<4xf32>
    memref.store %v, %C[%t] : memref<4xf32>
  }
  %c, %u = loop.kernel @second ins(%A = %h : tensor<4xf32>, %B = %w : tensor<4xf32>) outs(%C : tensor<i1>, %D : tensor<4xf32>) grid(%b in 1) threads(%t in 4) {
    %v = memref.load %B[%t] : memref<4xf32>
    memref.store %v, %D[%t] : memref<4xf32>
  }
  func.return %c, %u : tensor<i1>, tensor<4xf32>
}

func.func @main(%x: tensor<4xf32>, %m: tensor<i64>, %c: tensor<i1>) -> tensor<4xf32> {
  %s = loop.kernel @first ins(%A = %x : tensor<4xf32>) outs(%C : tensor<4xf32>) grid(%b in 1) threads(%t in 4) {
    %v = memref.load %A[%t] : memref<4xf32>
    memref.store %v, %C[%t] : memref<4xf32>
  }
  %y = graph.loop @body while (%m, %c) carries (%s) reads (%x)
      : (tensor<i64>, tensor<i1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK:      loop.func @first
// CHECK:      loop.func @second
// CHECK:      func.func private @body() attributes {arena_bytes = 64 : i64
// CHECK:        %[[S:.*]] = host.buffer input 1 : memref<4xf32>
// CHECK-NEXT:   %[[W:.*]] = host.buffer input 2 : memref<4xf32>
// CHECK-NEXT:   %[[H:.*]] = host.buffer arena 0 : memref<4xf32>
// CHECK-NEXT:   %[[C:.*]] = host.buffer output 0 : memref<i1>
// CHECK-NEXT:   %[[U:.*]] = host.buffer output 1 : memref<4xf32>
// CHECK-NEXT:   host.launch @first(%[[S]], %[[H]])
// CHECK-NEXT:   host.launch @second(%[[H]], %[[W]], %[[C]], %[[U]])
// CHECK-NEXT:   host.return
// CHECK:      func.func @main() attributes {arena_bytes = 320 : i64
// CHECK:        host.loop @body while(%m, %c) from(%s) to(%y) spare(%{{.*}}) reads(%x) rows() counter(%{{.*}}) again(%{{.*}}) arena(%{{.*}})
// CHECK-NEXT:   host.return
