// C[64x64] = A[64x96] * B[96x64]: 32x32 tiles in shared memory, 64 threads, a 4x4 register tile each.
loop.func @matmul(%A : memref<64x96xf32>, %B : memref<96x64xf32>, %C : memref<64x64xf32>)
    grid(%b in 4) threads(%t in 64) comment "MatMul */ int evil; /*" {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %c96 = arith.constant 96 : index
  %zero = arith.constant 0.0 : f32
  %tileA = loop.alloc : memref<32x32xf32, #loop.space<shared>>
  %tileB = loop.alloc : memref<32x32xf32, #loop.space<shared>>
  %acc = loop.alloc : memref<4x4xf32, #loop.space<register>>
  %bi = arith.divui %b, %c2 : index
  %bj = arith.remui %b, %c2 : index
  %row0 = arith.muli %bi, %c32 : index
  %col0 = arith.muli %bj, %c32 : index
  %ti = arith.divui %t, %c8 : index
  %tj = arith.remui %t, %c8 : index
  scf.for %i = %c0 to %c4 step %c1 {
    scf.for %j = %c0 to %c4 step %c1 {
      loop.store %zero, %acc[%i, %j] : memref<4x4xf32, #loop.space<register>>
    } {loop.unroll}
  } {loop.unroll}
  scf.for %k0 = %c0 to %c96 step %c32 {
    scf.for %s = %c0 to %c16 step %c1 {
      %half = arith.divui %t, %c32 : index
      %x = arith.remui %t, %c32 : index
      %twice = arith.muli %s, %c2 : index
      %y = arith.addi %twice, %half : index
      %ar = arith.addi %row0, %y : index
      %ac = arith.addi %k0, %x : index
      %in = arith.cmpi slt, %ar, %c64 : index
      %a = loop.load %A[%ar, %ac] where %in else %zero : memref<64x96xf32>
      loop.store %a, %tileA[%y, %x] : memref<32x32xf32, #loop.space<shared>>
      %br = arith.addi %k0, %y : index
      %bc = arith.addi %col0, %x : index
      %w = loop.load %B[%br, %bc] : memref<96x64xf32>
      loop.store %w, %tileB[%y, %x] : memref<32x32xf32, #loop.space<shared>>
    } {loop.unroll}
    loop.barrier
    scf.for %k = %c0 to %c32 step %c1 {
      scf.for %i = %c0 to %c4 step %c1 {
        scf.for %j = %c0 to %c4 step %c1 {
          %ri = arith.muli %ti, %c4 : index
          %r = arith.addi %ri, %i : index
          %ci = arith.muli %tj, %c4 : index
          %c = arith.addi %ci, %j : index
          %av = loop.load %tileA[%r, %k] : memref<32x32xf32, #loop.space<shared>>
          %bv = loop.load %tileB[%k, %c] : memref<32x32xf32, #loop.space<shared>>
          %old = loop.load %acc[%i, %j] : memref<4x4xf32, #loop.space<register>>
          %p = arith.mulf %av, %bv : f32
          %n = arith.addf %old, %p : f32
          loop.store %n, %acc[%i, %j] : memref<4x4xf32, #loop.space<register>>
        } {loop.unroll}
      } {loop.unroll}
    }
    loop.barrier
  }
  scf.for %i = %c0 to %c4 step %c1 {
    scf.for %j = %c0 to %c4 step %c1 {
      %ri = arith.muli %ti, %c4 : index
      %r = arith.addi %ri, %i : index
      %row = arith.addi %row0, %r : index
      %ci = arith.muli %tj, %c4 : index
      %c = arith.addi %ci, %j : index
      %col = arith.addi %col0, %c : index
      %v = loop.load %acc[%i, %j] : memref<4x4xf32, #loop.space<register>>
      %relu = arith.maximumf %v, %zero : f32
      %ok = arith.cmpi slt, %row, %c64 : index
      loop.store %relu, %C[%row, %col] where %ok : memref<64x64xf32>
    } {loop.unroll}
  } {loop.unroll}
}
