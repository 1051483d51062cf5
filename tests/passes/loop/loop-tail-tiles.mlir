// RUN: treadle-opt %s -p loop-tail-tiles{target=avx2} --split-input-file | filecheck %s

// A tile of 8 rows, of which the required region leaves fewer at its end: beside it stand tiles of 1, 4 and 6 rows.
func.func @main(%x: tensor<64x16xf32>, %w: tensor<16x8xf32>, %n: tensor<i64>) -> tensor<64x8xf32>
    attributes {extents = ["n"]} {
  %y = loop.kernel @k ins(%A = %x : tensor<64x16xf32>, %B = %w : tensor<16x8xf32>) outs(%C : tensor<64x8xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 8) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %c16 = arith.constant 16 : index
    %first = arith.muli %block, %c8 : index
    scf.for %m = %c0 to %c8 step %c8 {
      %acc = loop.alloc : memref<8x8xf32, #loop.space<register>>
      task.for (%r, %j) in #task.map<repeat(8, 8)> {
        %zero = arith.constant 0.0 : f32
        loop.store %zero, %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
      }
      scf.for %k = %c0 to %c16 step %c1 {
        task.for (%r, %j) in #task.map<repeat(8, 8)> {
          %row = arith.addi %first, %m : index
          %i = arith.addi %row, %r : index
          %a = loop.load %A[%i, %k] : memref<64x16xf32>
          %b = loop.load %B[%k, %j] : memref<16x8xf32>
          %p = arith.mulf %a, %b : f32
          %s = loop.load %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
          %t = arith.addf %s, %p : f32
          loop.store %t, %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
        }
      }
      task.for (%r, %j) in #task.map<repeat(8, 8)> {
        %row = arith.addi %first, %m : index
        %i = arith.addi %row, %r : index
        %s = loop.load %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
        loop.store %s, %C[%i, %j] : memref<64x8xf32>
      }
    }
  }
  func.return %y : tensor<64x8xf32>
}

// CHECK:      [[N:%.*]] = arith.index_cast
// CHECK:      scf.for %m =
// CHECK:        [[ONE:%.*]] = arith.cmpi slt, [[N]], %{{.*}} : index
// CHECK-NEXT:   scf.if [[ONE]] {
// CHECK:          loop.alloc : memref<1x8xf32, #loop.space<register>>
// CHECK:          #task.map<repeat(1, 8)>
// CHECK:        } else {
// CHECK:          [[FOUR:%.*]] = arith.cmpi slt, [[N]], %{{.*}} : index
// CHECK-NEXT:     scf.if [[FOUR]] {
// CHECK:            loop.alloc : memref<4x8xf32, #loop.space<register>>
// CHECK:            #task.map<repeat(4, 8)>
// CHECK:          } else {
// CHECK:            [[SIX:%.*]] = arith.cmpi slt, [[N]], %{{.*}} : index
// CHECK-NEXT:       scf.if [[SIX]] {
// CHECK:              loop.alloc : memref<6x8xf32, #loop.space<register>>
// CHECK:              #task.map<repeat(6, 8)>
// CHECK:            } else {
// CHECK:              loop.alloc : memref<8x8xf32, #loop.space<register>>
// CHECK:              #task.map<repeat(8, 8)>

// -----

// Sums that wait between two passes in rows of their own: a tile of fewer rows leaves fewer.
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x8xf32>, %n: tensor<i64>) -> tensor<64x8xf32>
    attributes {extents = ["n"]} {
  %y = loop.kernel @passes ins(%A = %x : tensor<64x32xf32>, %B = %w : tensor<32x8xf32>) outs(%C : tensor<64x8xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c4 = arith.constant 4 : index
    %c16 = arith.constant 16 : index
    %c64 = arith.constant 64 : index
    %zero = arith.constant 0.0 : f32
    %sums = loop.alloc : memref<64x8xf32, #loop.space<register>>
    scf.for %pass = %c0 to %c2 step %c1 {
      %later = arith.cmpi sgt, %pass, %c0 : index
      %first = arith.muli %pass, %c16 : index
      scf.for %m = %c0 to %c64 step %c4 {
        %acc = loop.alloc : memref<4x8xf32, #loop.space<register>>
        task.for (%r, %j) in #task.map<repeat(4, 8)> {
          %i = arith.addi %m, %r : index
          %s = loop.load %sums[%i, %j] where %later else %zero : memref<64x8xf32, #loop.space<register>>
          loop.store %s, %acc[%r, %j] : memref<4x8xf32, #loop.space<register>>
        }
        scf.for %k = %c0 to %c16 step %c1 {
          task.for (%r, %j) in #task.map<repeat(4, 8)> {
            %i = arith.addi %m, %r : index
            %at = arith.addi %first, %k : index
            %a = loop.load %A[%i, %at] : memref<64x32xf32>
            %b = loop.load %B[%at, %j] : memref<32x8xf32>
            %p = arith.mulf %a, %b : f32
            %s = loop.load %acc[%r, %j] : memref<4x8xf32, #loop.space<register>>
            %t = arith.addf %s, %p : f32
            loop.store %t, %acc[%r, %j] : memref<4x8xf32, #loop.space<register>>
          }
        }
        task.for (%r, %j) in #task.map<repeat(4, 8)> {
          %i = arith.addi %m, %r : index
          %s = loop.load %acc[%r, %j] : memref<4x8xf32, #loop.space<register>>
          loop.store %s, %sums[%i, %j] : memref<64x8xf32, #loop.space<register>>
          loop.store %s, %C[%i, %j] : memref<64x8xf32>
        }
      }
    }
  }
  func.return %y : tensor<64x8xf32>
}

// CHECK:      loop.kernel @passes
// CHECK:      %sums = loop.alloc : memref<64x8xf32, #loop.space<register>>
// CHECK:      scf.for %m =
// CHECK:        scf.if
// CHECK:          loop.alloc : memref<1x8xf32, #loop.space<register>>
// CHECK:          #task.map<repeat(1, 8)>
// CHECK:          loop.load %sums
// CHECK:          loop.store %{{.*}}, %sums
// CHECK:        } else {
// CHECK:          loop.alloc : memref<4x8xf32, #loop.space<register>>

// -----

// Of two kernels of a dispatch, the one that no call of fewer than one and a half tiles takes has the tile of half the rows
// only.
func.func @main(%x: tensor<64x16xf32>, %w: tensor<16x8xf32>, %n: tensor<i64>) -> tensor<64x8xf32>
    attributes {extents = ["n"]} {
  %y = loop.dispatch #schedule.tree<e0 <= 11 ? 0 : 1> (%n : tensor<i64>) {
    %few = loop.kernel @few ins(%A = %x : tensor<64x16xf32>, %B = %w : tensor<16x8xf32>) outs(%C : tensor<64x8xf32>)
        requires [#graph.required<d0 < 0>] grid(%block in 8) threads(%thread in 1) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c8 = arith.constant 8 : index
      %c16 = arith.constant 16 : index
      %first = arith.muli %block, %c8 : index
      scf.for %m = %c0 to %c8 step %c8 {
        %acc = loop.alloc : memref<8x8xf32, #loop.space<register>>
        task.for (%r, %j) in #task.map<repeat(8, 8)> {
          %zero = arith.constant 0.0 : f32
          loop.store %zero, %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
        }
        scf.for %k = %c0 to %c16 step %c1 {
          task.for (%r, %j) in #task.map<repeat(8, 8)> {
            %row = arith.addi %first, %m : index
            %i = arith.addi %row, %r : index
            %a = loop.load %A[%i, %k] : memref<64x16xf32>
            %b = loop.load %B[%k, %j] : memref<16x8xf32>
            %p = arith.mulf %a, %b : f32
            %s = loop.load %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
            %t = arith.addf %s, %p : f32
            loop.store %t, %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
          }
        }
        task.for (%r, %j) in #task.map<repeat(8, 8)> {
          %row = arith.addi %first, %m : index
          %i = arith.addi %row, %r : index
          %s = loop.load %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
          loop.store %s, %C[%i, %j] : memref<64x8xf32>
        }
      }
    }
    %many = loop.kernel @many ins(%A = %x : tensor<64x16xf32>, %B = %w : tensor<16x8xf32>) outs(%C : tensor<64x8xf32>)
        requires [#graph.required<d0 < 0>] grid(%block in 8) threads(%thread in 1) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c8 = arith.constant 8 : index
      %c16 = arith.constant 16 : index
      %first = arith.muli %block, %c8 : index
      scf.for %m = %c0 to %c8 step %c8 {
        %acc = loop.alloc : memref<8x8xf32, #loop.space<register>>
        task.for (%r, %j) in #task.map<repeat(8, 8)> {
          %zero = arith.constant 0.0 : f32
          loop.store %zero, %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
        }
        scf.for %k = %c0 to %c16 step %c1 {
          task.for (%r, %j) in #task.map<repeat(8, 8)> {
            %row = arith.addi %first, %m : index
            %i = arith.addi %row, %r : index
            %a = loop.load %A[%i, %k] : memref<64x16xf32>
            %b = loop.load %B[%k, %j] : memref<16x8xf32>
            %p = arith.mulf %a, %b : f32
            %s = loop.load %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
            %t = arith.addf %s, %p : f32
            loop.store %t, %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
          }
        }
        task.for (%r, %j) in #task.map<repeat(8, 8)> {
          %row = arith.addi %first, %m : index
          %i = arith.addi %row, %r : index
          %s = loop.load %acc[%r, %j] : memref<8x8xf32, #loop.space<register>>
          loop.store %s, %C[%i, %j] : memref<64x8xf32>
        }
      }
    }
  } : tensor<64x8xf32>
  func.return %y : tensor<64x8xf32>
}

// CHECK:      loop.kernel @few
// CHECK:        loop.alloc : memref<1x8xf32, #loop.space<register>>
// CHECK:        loop.alloc : memref<4x8xf32, #loop.space<register>>
// CHECK:        loop.alloc : memref<6x8xf32, #loop.space<register>>
// CHECK:        loop.alloc : memref<8x8xf32, #loop.space<register>>
// CHECK:      loop.kernel @many
// CHECK-NOT:    memref<1x8xf32
// CHECK:        loop.alloc : memref<4x8xf32, #loop.space<register>>
// CHECK-NOT:    memref<6x8xf32
// CHECK:        loop.alloc : memref<8x8xf32, #loop.space<register>>

// -----

// A panel of 24 columns, of which the required region leaves fewer in the last block: beside it stand one and two vectors
// of columns. The copy of the panel is narrower, too.
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x72xf32>, %n: tensor<i64>) -> tensor<8x72xf32>
    attributes {extents = ["n"]} {
  %y = loop.kernel @columns ins(%A = %x : tensor<8x16xf32>, %B = %w : tensor<16x72xf32>) outs(%C : tensor<8x72xf32>)
      requires [#graph.required<d1 < 0>] grid(%block in 3) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c8 = arith.constant 8 : index
    %c16 = arith.constant 16 : index
    %c24 = arith.constant 24 : index
    %first = arith.muli %block, %c24 : index
    %panel = loop.alloc : memref<16x24xf32, #loop.space<register>>
    task.for (%k, %j) in #task.map<repeat(16, 24)> {
      %at = arith.addi %first, %j : index
      %b = loop.load %B[%k, %at] : memref<16x72xf32>
      loop.store %b, %panel[%k, %j] : memref<16x24xf32, #loop.space<register>>
    }
    scf.for %m = %c0 to %c8 step %c4 {
      %acc = loop.alloc : memref<4x24xf32, #loop.space<register>>
      task.for (%r, %j) in #task.map<repeat(4, 24)> {
        %zero = arith.constant 0.0 : f32
        loop.store %zero, %acc[%r, %j] : memref<4x24xf32, #loop.space<register>>
      }
      scf.for %k = %c0 to %c16 step %c1 {
        task.for (%r, %j) in #task.map<repeat(4, 24)> {
          %i = arith.addi %m, %r : index
          %a = loop.load %A[%i, %k] : memref<8x16xf32>
          %b = loop.load %panel[%k, %j] : memref<16x24xf32, #loop.space<register>>
          %p = arith.mulf %a, %b : f32
          %s = loop.load %acc[%r, %j] : memref<4x24xf32, #loop.space<register>>
          %t = arith.addf %s, %p : f32
          loop.store %t, %acc[%r, %j] : memref<4x24xf32, #loop.space<register>>
        }
      }
      task.for (%r, %j) in #task.map<repeat(4, 24)> {
        %i = arith.addi %m, %r : index
        %at = arith.addi %first, %j : index
        %s = loop.load %acc[%r, %j] : memref<4x24xf32, #loop.space<register>>
        loop.store %s, %C[%i, %at] : memref<8x72xf32>
      }
    }
  }
  func.return %y : tensor<8x72xf32>
}

// CHECK:      loop.kernel @columns
// CHECK:      [[END:%.*]] = arith.index_cast
// CHECK:      [[ONE:%.*]] = arith.cmpi slt, [[END]], %{{.*}} : index
// CHECK-NEXT: scf.if [[ONE]] {
// CHECK:        loop.alloc : memref<16x8xf32, #loop.space<register>>
// CHECK:        #task.map<repeat(16, 8)>
// CHECK:        scf.for %m
// CHECK:          loop.alloc : memref<4x8xf32, #loop.space<register>>
// CHECK:          #task.map<repeat(4, 8)>
// CHECK:      } else {
// CHECK:        [[TWO:%.*]] = arith.cmpi slt, [[END]], %{{.*}} : index
// CHECK-NEXT:   scf.if [[TWO]] {
// CHECK:          #task.map<repeat(16, 16)>
// CHECK:          #task.map<repeat(4, 16)>
// CHECK:        } else {
// CHECK:          #task.map<repeat(16, 24)>
// CHECK:          scf.for %m
// CHECK-NOT:        scf.if
// CHECK:            #task.map<repeat(4, 24)>
