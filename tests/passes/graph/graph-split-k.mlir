// RUN: treadle-opt %s -p 'graph-split-k{target="sm_80"}' | filecheck %s

// 2 x 1 tiles for 108 multiprocessors: 54 slices would give each a block, but 4096 terms make 32 slices of 128.
func.func @split(%a: tensor<128x4096xf32>, %b: tensor<4096x64xf32>) -> tensor<128x64xf32> {
  %c = graph.matmul %a, %b : (tensor<128x4096xf32>, tensor<4096x64xf32>) -> tensor<128x64xf32>
  %d = graph.unary "relu" %c : (tensor<128x64xf32>) -> tensor<128x64xf32>
  func.return %d : tensor<128x64xf32>
}

// CHECK-LABEL: func.func @split
// CHECK-NEXT:    [[A:%.*]] = graph.reshape %a {{.*}} -> tensor<128x32x128xf32>
// CHECK-NEXT:    [[T:%.*]] = graph.transpose [[A]] {perm = array<i64: 1, 0, 2>} : {{.*}} -> tensor<32x128x128xf32>
// CHECK-NEXT:    [[B:%.*]] = graph.reshape %b {{.*}} -> tensor<32x128x64xf32>
// CHECK-NEXT:    [[P:%.*]] = graph.matmul [[T]], [[B]] {{.*}} -> tensor<32x128x64xf32>
// CHECK-NEXT:    %c = graph.reduction "add" [[P]] {dims = array<i64: 0>, {{.*}} -> tensor<128x64xf32>
// CHECK-NEXT:    %d = graph.unary "relu" %c

// 24 tiles: 5 slices would do, 6 divide the terms. So few are added as single operands.
func.func @even(%a: tensor<128x768xf32>, %b: tensor<768x768xf32>) -> tensor<128x768xf32> {
  %c = graph.matmul %a, %b : (tensor<128x768xf32>, tensor<768x768xf32>) -> tensor<128x768xf32>
  func.return %c : tensor<128x768xf32>
}

// CHECK-LABEL: func.func @even
// CHECK:         [[P:%.*]] = graph.matmul {{.*}} -> tensor<6x128x768xf32>
// CHECK:         [[S:%.*]] = graph.slice [[P]] {starts = array<i64: 0, 0, 0>, sizes = array<i64: 1, 128, 768>
// CHECK-NEXT:    [[X:%.*]] = graph.reshape [[S]] {{.*}} -> tensor<128x768xf32>
// CHECK:         [[S:%.*]] = graph.slice [[P]] {starts = array<i64: 1, 0, 0>, sizes = array<i64: 1, 128, 768>
// CHECK-NEXT:    [[Y:%.*]] = graph.reshape [[S]] {{.*}} -> tensor<128x768xf32>
// CHECK-NEXT:    graph.binary "add" [[X]], [[Y]]
// CHECK:         %c = graph.binary "add"
// CHECK-NOT:     graph.reduction

// A prime number of terms is filled up with zeros: 15 slices of 136.
func.func @padded(%a: tensor<100x2039xf32>, %b: tensor<2039x64xf32>) -> tensor<100x64xf32> {
  %c = graph.matmul %a, %b : (tensor<100x2039xf32>, tensor<2039x64xf32>) -> tensor<100x64xf32>
  func.return %c : tensor<100x64xf32>
}

// CHECK-LABEL: func.func @padded
// CHECK:         graph.pad "constant" %a, {{.*}} -> tensor<100x2040xf32>
// CHECK:         graph.pad "constant" %b, {{.*}} -> tensor<2040x64xf32>
// CHECK:         graph.matmul {{.*}} -> tensor<15x100x64xf32>

// Whole: enough tiles, few terms, shorter floats, a row that a reduction computes, a batch on one side.
func.func @whole(%a: tensor<1024x1024xf32>, %b: tensor<64x192xf32>, %c: tensor<192x64xf32>, %d: tensor<64x4096xf16>,
    %e: tensor<4096x64xf16>, %f: tensor<1x1024xf32>, %g: tensor<2x64x1024xf32>) {
  %0 = graph.matmul %a, %a : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
  %1 = graph.matmul %b, %c : (tensor<64x192xf32>, tensor<192x64xf32>) -> tensor<64x64xf32>
  %2 = graph.matmul %d, %e : (tensor<64x4096xf16>, tensor<4096x64xf16>) -> tensor<64x64xf16>
  %3 = graph.matmul %f, %a : (tensor<1x1024xf32>, tensor<1024x1024xf32>) -> tensor<1x1024xf32>
  %4 = graph.matmul %g, %a : (tensor<2x64x1024xf32>, tensor<1024x1024xf32>) -> tensor<2x64x1024xf32>
  func.return
}

// CHECK-LABEL: func.func @whole
// CHECK-NOT:     graph.reduction
