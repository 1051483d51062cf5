// RUN: treadle-opt %s -p memory-plan,loop-flatten | filecheck %s

// What kernels allocate for all of their blocks becomes arguments. Scratch memory lies in the arena during its launch:
// that of the first is reused by the second, whose input it must not touch. Counters are zero for each launch.

func.func @main(%x : tensor<64xf32>) -> tensor<64xf32> {
  %h = loop.kernel @sum ins(%A = %x : tensor<64xf32>) outs(%C : tensor<64xf32>) grid(%b in 4) threads(%t in 32) {
    %sums = loop.alloc : memref<4x32xf32, #loop.space<device>>
    %counters = loop.alloc : memref<2xi32, #loop.space<zeroed>>
    %c0 = arith.constant 0 : index
    %v = loop.load %A[%t] : memref<64xf32>
    loop.store %v, %sums[%b, %t] : memref<4x32xf32, #loop.space<device>>
    %last = loop.arrive %counters[%c0] of 4 : memref<2xi32, #loop.space<zeroed>>
    scf.if %last {
      %w = loop.load %sums[%c0, %t] : memref<4x32xf32, #loop.space<device>>
      loop.store %w, %C[%t] : memref<64xf32>
    }
  }
  %y = loop.kernel @other ins(%A = %h : tensor<64xf32>) outs(%C : tensor<64xf32>) grid(%b in 9) threads(%t in 32) {
    %scratch = loop.alloc : memref<64xf32, #loop.space<device>>
    %counters = loop.alloc : memref<2xi32, #loop.space<zeroed>>
    %v = loop.load %A[%t] : memref<64xf32>
    loop.store %v, %scratch[%t] : memref<64xf32, #loop.space<device>>
    %last = loop.arrive %counters[%t] of 9 : memref<2xi32, #loop.space<zeroed>>
    loop.store %v, %C[%t] : memref<64xf32>
  }
  func.return %y : tensor<64xf32>
}

// CHECK:       loop.func @sum(%A: memref<64xf32>, %sums: memref<128xf32, #loop.space<device>>,
// CHECK-SAME:      %counters: memref<2xi32, #loop.space<zeroed>>, %C: memref<64xf32>) grid(%b in 4)
// CHECK-NOT:     loop.alloc
// CHECK:         loop.store %v, %sums[{{.*}}] : memref<128xf32, #loop.space<device>>
// CHECK:         %last = loop.arrive %counters[%c0] of 4 : memref<2xi32, #loop.space<zeroed>>
// CHECK:       loop.func @other(
// CHECK:       func.func @main() attributes {arena_bytes = 768 : i64
// CHECK:         %h = host.buffer arena [[H:[0-9]+]] : memref<64xf32>
// CHECK:         %sums = host.buffer arena 0 : memref<128xf32>
// CHECK-NEXT:    %counters = host.buffer zeroed 0 : memref<2xi32>
// CHECK-NEXT:    %scratch = host.buffer arena 0 : memref<64xf32>
// CHECK-NEXT:    host.launch @sum(%x, %sums, %counters, %h)
// CHECK-NEXT:    host.launch @other(%h, %scratch, %counters, %y)
