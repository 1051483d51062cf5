// RUN: treadle-opt %s -p loop-dense-arguments --split-input-file | filecheck %s

// Rows end at the extent, so that they need no test; columns are lanes, which do. The input is read with the strides of
// a call, and the output written so.
func.func @main(%x: tensor<4x64xf32>, %s: tensor<i64>, %n: tensor<i64>) -> tensor<4x64xf32> attributes {
    symbols = ["n:1..4", "s:1..64"], input_extents = [["n", "s"]], output_extents = [["n", "s"]], extents = ["s", "n"]} {
  %y = loop.kernel @rows ins(%A = %x : tensor<4x64xf32>, %N = %n : tensor<i64>) outs(%C : tensor<4x64xf32>)
      grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : i64
    %zero = arith.constant 0 : i64
    %read = loop.load %N[] : memref<i64>
    %most = arith.minsi %read, %c4 : i64
    %clamped = arith.maxsi %most, %zero : i64
    %end = arith.index_cast %clamped : i64 to index
    scf.for %i = %c0 to %end step %c1 {
      task.for (%j) in #task.map<repeat(64)> {
        %a = loop.load %A[%i, %j] : memref<4x64xf32>
        loop.store %a, %C[%i, %j] : memref<4x64xf32>
      } {loop.vector}
    }
  }
  func.return %y : tensor<4x64xf32>
}

// CHECK:      dense_inputs = array<i64: 0>, dense_outputs = array<i64: 0>
// CHECK:      loop.kernel @rows ins(%A = %x : tensor<4x64xf32> flat, %N = %n : tensor<i64>, [[S:%.*]] = %s : tensor<i64>)
// CHECK-SAME: outs(%C : tensor<4x64xf32> flat) requires [#graph.required<>]
// CHECK:      [[READ:%.*]] = loop.load [[S]][] : memref<i64>
// CHECK:      [[SIZE:%.*]] = arith.index_cast %{{.*}} : i64 to index
// CHECK:      task.for (%j)
// CHECK-NEXT:   [[ROW:%.*]] = arith.muli %i, [[SIZE]] : index
// CHECK-NEXT:   [[INSIDE:%.*]] = arith.cmpi slt, %j, [[SIZE]] : index
// CHECK-NEXT:   [[AT:%.*]] = arith.addi [[ROW]], %j : index
// CHECK-NEXT:   arith.constant 0.000000e+00 : f32
// CHECK-NEXT:   loop.load %A{{\[}}[[AT]]] where [[INSIDE]] else %{{.*}} : memref<256xf32>
// CHECK:        loop.store %a, %C[%{{.*}}] where %{{.*}} : memref<256xf32>

// -----

// A row that nothing proves to lie within the extent is the last one for a load, and a predicate of the store; the
// output's two factors are read off its one index.
func.func @main(%x: tensor<4x8xf32>, %n: tensor<i64>) -> tensor<32xf32> attributes {
    symbols = ["n:2..4"], input_extents = [["n", "8"]], output_extents = [["n<=4, 8<=8"]], extents = ["n"]} {
  %y = loop.kernel @flat ins(%A = %x : tensor<4x8xf32>) outs(%C : tensor<32xf32>)
      requires [#graph.required<d0 floordiv 8 < 0>] grid(%block in 4) threads(%thread in 1) {
    %c8 = arith.constant 8 : index
    %first = arith.muli %block, %c8 : index
    task.for (%j) in #task.map<repeat(8)> {
      %a = loop.load %A[%block, %j] : memref<4x8xf32>
      %at = arith.addi %first, %j : index
      loop.store %a, %C[%at] : memref<32xf32>
    }
  }
  func.return %y : tensor<32xf32>
}

// CHECK:      dense_inputs = array<i64: 0>, dense_outputs = array<i64: 0>
// CHECK:      arith.minsi %block, %{{.*}} : index
// CHECK:      loop.load %A[%{{.*}}] : memref<32xf32>
// CHECK:      loop.store %a, %C[%{{.*}}] where %{{.*}} : memref<32xf32>

// -----

// Lanes that go down columns would have a stride that changes: the input stays in its largest shape.
func.func @main(%x: tensor<16x8xf32>, %n: tensor<i64>) -> tensor<8x16xf32> attributes {
    symbols = ["n:1..8"], input_extents = [["16", "n"]], output_extents = [["8", "16"]], extents = ["n"]} {
  %y = loop.kernel @turn ins(%A = %x : tensor<16x8xf32>) outs(%C : tensor<8x16xf32>)
      grid(%block in 8) threads(%thread in 1) {
    task.for (%j) in #task.map<repeat(16)> {
      %a = loop.load %A[%j, %block] : memref<16x8xf32>
      loop.store %a, %C[%block, %j] : memref<8x16xf32>
    } {loop.vector}
  }
  func.return %y : tensor<8x16xf32>
}

// CHECK-NOT:  dense
// CHECK:      loop.load %A[%j, %block] : memref<16x8xf32>

// -----

// So does what is returned twice, and an extent that is no argument of @main.
func.func @main(%x: tensor<4xf32>, %n: tensor<i64>) -> (tensor<4xf32>, tensor<4xf32>) attributes {
    symbols = ["m:1..4", "n:1..4"], input_extents = [["m"]], output_extents = [["n"], ["n"]], extents = ["n"]} {
  %y = loop.kernel @copy ins(%A = %x : tensor<4xf32>) outs(%C : tensor<4xf32>)
      grid(%block in 4) threads(%thread in 1) {
    %a = loop.load %A[%block] : memref<4xf32>
    loop.store %a, %C[%block] : memref<4xf32>
  }
  func.return %y, %y : tensor<4xf32>, tensor<4xf32>
}

// CHECK-NOT:  dense
// CHECK:      loop.store %a, %C[%block] : memref<4xf32>
