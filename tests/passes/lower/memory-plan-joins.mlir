// RUN: treadle-opt %s -p memory-plan | filecheck %s

// The parts lie in the whole, one of them in another whole first; nothing is launched to join them. A result of the
// function, and what begins inside of 64 bytes, is copied.
func.func @main(%x: tensor<32xf32>) -> (tensor<64xf32>, tensor<40xf32>, tensor<160xf32>) {
  %a = loop.kernel @copy ins(%X = %x : tensor<32xf32>) outs(%A : tensor<32xf32>) grid(%n in 32) threads(%t in 1) {
    %v = memref.load %X[%n] : memref<32xf32>
    memref.store %v, %A[%n] : memref<32xf32>
  }
  %b = loop.kernel @copy ins(%X = %a : tensor<32xf32>) outs(%A : tensor<32xf32>) grid(%n in 32) threads(%t in 1) {
    %v = memref.load %X[%n] : memref<32xf32>
    memref.store %v, %A[%n] : memref<32xf32>
  }
  %c = loop.kernel @join ins(%X = %a : tensor<32xf32>, %Y = %b : tensor<32xf32>) outs(%A : tensor<64xf32>) joins [32, 0] grid(%n in 32) threads(%t in 1) {
    %v = memref.load %X[%n] : memref<32xf32>
    memref.store %v, %A[%n] : memref<64xf32>
  }
  %d = loop.kernel @wide ins(%X = %c : tensor<64xf32>) outs(%A : tensor<64xf32>) grid(%n in 64) threads(%t in 1) {
    %v = memref.load %X[%n] : memref<64xf32>
    memref.store %v, %A[%n] : memref<64xf32>
  }
  %e = loop.kernel @join_again ins(%X = %d : tensor<64xf32>, %Y = %c : tensor<64xf32>) outs(%A : tensor<128xf32>) joins [0, 64] grid(%n in 32) threads(%t in 1) {
    %v = memref.load %X[%n] : memref<64xf32>
    memref.store %v, %A[%n] : memref<128xf32>
  }
  %f = loop.kernel @more ins(%X = %e : tensor<128xf32>) outs(%A : tensor<160xf32>) grid(%n in 128) threads(%t in 1) {
    %v = memref.load %X[%n] : memref<128xf32>
    memref.store %v, %A[%n] : memref<160xf32>
  }
  %g = loop.kernel @few ins(%X = %x : tensor<32xf32>) outs(%A : tensor<8xf32>) grid(%n in 8) threads(%t in 1) {
    %v = memref.load %X[%n] : memref<32xf32>
    memref.store %v, %A[%n] : memref<8xf32>
  }
  %h = loop.kernel @join_few ins(%X = %g : tensor<8xf32>, %Y = %x : tensor<32xf32>) outs(%A : tensor<40xf32>) joins [0, 8] grid(%n in 8) threads(%t in 1) {
    %v = memref.load %X[%n] : memref<8xf32>
    memref.store %v, %A[%n] : memref<40xf32>
  }
  func.return %d, %h, %f : tensor<64xf32>, tensor<40xf32>, tensor<160xf32>
}

// %d is returned, so that @join_again copies; @join does not.
// CHECK-NOT:  loop.func @join(
// CHECK-DAG:    %b = host.buffer arena [[B:[0-9]+]] : memref<32xf32>
// CHECK-DAG:    %c = host.buffer arena [[B]] : memref<64xf32>
// CHECK:        host.launch @copy(%x, %a)
// CHECK-NEXT:   host.launch @copy(%a, %b)
// CHECK-NEXT:   host.launch @wide(%c, %d)
// CHECK-NEXT:   host.launch @join_again(%d, %c, %e)
// CHECK-NEXT:   host.launch @more(%e, %f)
// CHECK-NEXT:   host.launch @few(%x, %g)
// CHECK-NEXT:   host.launch @join_few(%g, %x, %h)
