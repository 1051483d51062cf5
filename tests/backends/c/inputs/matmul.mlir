// C[128x768] = A[128x768] * B, B packed in panels of 32 columns: [24][768][2] vectors of 16.
// What the matmul template comes to at the final level; 8 rows a register tile, 64 rows a block.
loop.func @matmul(%A : memref<128x768xf32>, %B : memref<24x768x2xvector<16xf32>>, %C : memref<128x768xf32>)
    grid(%b in 48) threads(%t in 1) comment "MatMul /encoder/layer.0/query" {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c24 = arith.constant 24 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %c768 = arith.constant 768 : index
  %zero = arith.constant dense<0.0> : vector<16xf32>
  %p = arith.remui %b, %c24 : index
  %chunk = arith.divui %b, %c24 : index
  %m0 = arith.muli %chunk, %c64 : index
  %m1 = arith.addi %m0, %c64 : index
  scf.for %m = %m0 to %m1 step %c8 {
    %acc = loop.alloc : memref<8x2xvector<16xf32>, #loop.space<register>>
    scf.for %r = %c0 to %c8 step %c1 {
      scf.for %v = %c0 to %c2 step %c1 {
        loop.store %zero, %acc[%r, %v] : memref<8x2xvector<16xf32>, #loop.space<register>>
      } {loop.unroll}
    } {loop.unroll}
    scf.for %k = %c0 to %c768 step %c1 {
      scf.for %r = %c0 to %c8 step %c1 {
        %row = arith.addi %m, %r : index
        %a = loop.load %A[%row, %k] : memref<128x768xf32>
        %wide = vector.broadcast %a : f32 to vector<16xf32>
        scf.for %v = %c0 to %c2 step %c1 {
          %w = loop.load %B[%p, %k, %v] : memref<24x768x2xvector<16xf32>>
          %old = loop.load %acc[%r, %v] : memref<8x2xvector<16xf32>, #loop.space<register>>
          %product = arith.mulf %wide, %w : vector<16xf32>
          %new = arith.addf %old, %product : vector<16xf32>
          loop.store %new, %acc[%r, %v] : memref<8x2xvector<16xf32>, #loop.space<register>>
        } {loop.unroll}
      } {loop.unroll}
    }
    scf.for %r = %c0 to %c8 step %c1 {
      %row = arith.addi %m, %r : index
      scf.for %v = %c0 to %c2 step %c1 {
        %sum = loop.load %acc[%r, %v] : memref<8x2xvector<16xf32>, #loop.space<register>>
        %left = arith.muli %p, %c32 : index
        %within = arith.muli %v, %c16 : index
        %column = arith.addi %left, %within : index
        vector.store %sum, %C[%row, %column] : memref<128x768xf32>, vector<16xf32>
      } {loop.unroll}
    } {loop.unroll}
  }
}

func.func @main() {
  %x = host.buffer input 0 : memref<128x768xf32>
  %w = host.buffer input 1 : memref<24x768x2xvector<16xf32>>
  %y = host.buffer output 0 : memref<128x768xf32>
  host.launch @matmul(%x, %w, %y) : memref<128x768xf32>, memref<24x768x2xvector<16xf32>>, memref<128x768xf32>
  host.return
}
