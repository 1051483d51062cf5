// RUN: treadle-opt %s -p loop-vectorize | filecheck %s

// The lanes below an extent are a mask, whose end is computed from it.
loop.func @tail(%n: memref<i64>, %A: memref<64xf32>, %Y: memref<64xf32>) grid(%b in 1) threads(%t in 1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %zero = arith.constant 0.0 : f32
  %read = memref.load %n[] : memref<i64>
  %most = arith.constant 64 : i64
  %least = arith.constant 0 : i64
  %below = arith.minsi %read, %most : i64
  %above = arith.maxsi %below, %least : i64
  %extent = arith.index_cast %above : i64 to index
  scf.for %i = %c0 to %c64 step %c1 {
    %in = arith.cmpi slt, %i, %extent : index
    %x = loop.load %A[%i] where %in else %zero : memref<64xf32>
    %y = arith.addf %x, %x : f32
    loop.store %y, %Y[%i] : memref<64xf32>
  } {loop.vector}
}

// CHECK:      scf.for %i = {{%\S+}} to %c4 step
// CHECK:        [[LEFT:%\S+]] = arith.addi {{%\S+}}, %extent : index
// CHECK-NEXT:   [[MASK:%\S+]] = loop.lane_mask {{%\S+}}, [[LEFT]] : vector<16xi1>
// CHECK:        %x = vector.maskedload %A[{{%\S+}}], [[MASK]], {{%\S+}}
// CHECK:        vector.store %y, %Y[{{%\S+}}] : memref<64xf32>, vector<16xf32>
