// RUN: treadle-opt %s -p loop-skip-padding --split-input-file | filecheck %s

// Sums of tiles of 8 rows wait in a buffer until the next pass. Of the buffer, only rows of tiles that store something
// required are required, so that the loop over tiles ends in each pass where the required region does.
func.func @main(%x: tensor<64x16xf32>, %n: tensor<i64>) -> tensor<64x16xf32> attributes {extents = ["n"]} {
  %y = loop.kernel @passes ins(%A = %x : tensor<64x16xf32>) outs(%C : tensor<64x16xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c8 = arith.constant 8 : index
    %c64 = arith.constant 64 : index
    %zero = arith.constant 0.0 : f32
    %sums = loop.alloc : memref<64x16xf32, #loop.space<register>>
    scf.for %pass = %c0 to %c4 step %c1 {
      %later = arith.cmpi sgt, %pass, %c0 : index
      scf.for %m = %c0 to %c64 step %c8 {
        scf.for %r = %c0 to %c8 step %c1 {
          %i = arith.addi %m, %r : index
          task.for (%j) in #task.map<repeat(16)> {
            %a = loop.load %A[%i, %j] : memref<64x16xf32>
            %b = loop.load %sums[%i, %j] where %later else %zero : memref<64x16xf32, #loop.space<register>>
            %s = arith.addf %a, %b : f32
            loop.store %s, %sums[%i, %j] : memref<64x16xf32, #loop.space<register>>
            loop.store %s, %C[%i, %j] : memref<64x16xf32>
          }
        }
      }
    }
  }
  func.return %y : tensor<64x16xf32>
}

// CHECK:      loop.kernel @passes
// CHECK:      [[N:%.*]] = arith.index_cast
// CHECK:      scf.for %pass = %c0 to %c4 step %c1 {
// CHECK:        scf.for %m = %c0 to [[N]] step %c8 {
// CHECK-NEXT:     scf.for %r = %c0 to %c8 step %c1 {
// CHECK-NOT:        scf.if

// -----

// A pass reads what the one before has left for the next tile: where that is not required, its sums are, and nothing is
// skipped.
func.func @main(%x: tensor<64x16xf32>, %n: tensor<i64>) -> tensor<64x16xf32> attributes {extents = ["n"]} {
  %y = loop.kernel @next ins(%A = %x : tensor<64x16xf32>) outs(%C : tensor<64x16xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c8 = arith.constant 8 : index
    %c64 = arith.constant 64 : index
    %zero = arith.constant 0.0 : f32
    %sums = loop.alloc : memref<72x16xf32, #loop.space<register>>
    scf.for %pass = %c0 to %c4 step %c1 {
      %later = arith.cmpi sgt, %pass, %c0 : index
      scf.for %m = %c0 to %c64 step %c8 {
        scf.for %r = %c0 to %c8 step %c1 {
          %i = arith.addi %m, %r : index
          %next = arith.addi %i, %c8 : index
          task.for (%j) in #task.map<repeat(16)> {
            %a = loop.load %A[%i, %j] : memref<64x16xf32>
            %b = loop.load %sums[%next, %j] where %later else %zero : memref<72x16xf32, #loop.space<register>>
            %s = arith.addf %a, %b : f32
            loop.store %s, %sums[%i, %j] : memref<72x16xf32, #loop.space<register>>
            loop.store %s, %C[%i, %j] : memref<64x16xf32>
          }
        }
      }
    }
  }
  func.return %y : tensor<64x16xf32>
}

// CHECK:      loop.kernel @next ins(%A = %x : tensor<64x16xf32>) outs(%C : tensor<64x16xf32>) grid
// CHECK:      scf.for %m = %c0 to %c64 step %c8 {
// CHECK-NOT:  scf.if

// -----

// One loop fills a buffer, and another stores what is required of it: both end there.
func.func @main(%x: tensor<64x16xf32>, %n: tensor<i64>) -> tensor<64x16xf32> attributes {extents = ["n"]} {
  %y = loop.kernel @two ins(%A = %x : tensor<64x16xf32>) outs(%C : tensor<64x16xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c16 = arith.constant 16 : index
    %c64 = arith.constant 64 : index
    %rows = loop.alloc : memref<64x16xf32, #loop.space<register>>
    scf.for %i = %c0 to %c64 step %c1 {
      scf.for %j = %c0 to %c16 step %c1 {
        %a = loop.load %A[%i, %j] : memref<64x16xf32>
        loop.store %a, %rows[%i, %j] : memref<64x16xf32, #loop.space<register>>
      }
    }
    scf.for %i = %c0 to %c64 step %c1 {
      scf.for %j = %c0 to %c16 step %c1 {
        %b = loop.load %rows[%i, %j] : memref<64x16xf32, #loop.space<register>>
        loop.store %b, %C[%i, %j] : memref<64x16xf32>
      }
    }
  }
  func.return %y : tensor<64x16xf32>
}

// CHECK:      loop.kernel @two
// CHECK:      [[N:%.*]] = arith.index_cast
// CHECK:      scf.for %{{.*}} = %c0 to [[N]] step %c1 {
// CHECK:        loop.load %A
// CHECK:      scf.for %{{.*}} = %c0 to [[N]] step %c1 {
// CHECK:        loop.load %rows

// -----

// Tiles of 32 rows are packed one by one, and multiplied on a core's matrix unit: those that store nothing that is
// required are neither. The loop that stores the sums of a tile ends where rows do.
func.func @main(%x: tensor<128x32xbf16>, %p: tensor<1x16x32x2xbf16>, %n: tensor<i64>) -> tensor<128x32xf32> attributes {extents = ["n"]} {
  %y = loop.kernel @tiles ins(%A = %x : tensor<128x32xbf16>, %B = %p : tensor<1x16x32x2xbf16>) outs(%C : tensor<128x32xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c32 = arith.constant 32 : index
    %c128 = arith.constant 128 : index
    %rows = loop.alloc : memref<4x1x32x32xbf16, #loop.space<register>>
    scf.for %tile = %c0 to %c4 step %c1 {
      scf.for %m = %c0 to %c32 step %c1 {
        %first = arith.muli %tile, %c32 : index
        %i = arith.addi %first, %m : index
        task.for (%k) in #task.map<repeat(32)> {
          %a = loop.load %A[%i, %k] : memref<128x32xbf16>
          loop.store %a, %rows[%tile, %c0, %m, %k] : memref<4x1x32x32xbf16, #loop.space<register>>
        }
      }
    }
    scf.for %m = %c0 to %c128 step %c32 {
      %acc = loop.alloc : memref<32x32xf32, #loop.space<register>>
      %t = arith.divui %m, %c32 : index
      loop.multiply_tiles %acc[%c0, %c0] = %rows[%t, %c0, %c0, %c0] * %B[%c0, %c0, %c0, %c0]
          rows 32 depth 32 stride 32 taps [0] apart 1024
          : memref<32x32xf32, #loop.space<register>>, memref<4x1x32x32xbf16, #loop.space<register>>, memref<1x16x32x2xbf16>
      scf.for %r = %c0 to %c32 step %c1 {
        %i = arith.addi %m, %r : index
        task.for (%j) in #task.map<repeat(32)> {
          %s = loop.load %acc[%r, %j] : memref<32x32xf32, #loop.space<register>>
          loop.store %s, %C[%i, %j] : memref<128x32xf32>
        }
      }
    }
  }
  func.return %y : tensor<128x32xf32>
}

// CHECK:      loop.kernel @tiles
// CHECK:      [[N:%.*]] = arith.index_cast
// CHECK:      scf.for %tile = %c0 to %c4 step %c1 {
// CHECK:        [[T:%.*]] = arith.cmpi slt, {{%.*}}, [[N]]
// CHECK-NEXT:   scf.if [[T]] {
// CHECK:      scf.for {{%.*}} = %c0 to [[N]] step %c32 {
// CHECK:        loop.multiply_tiles
// CHECK:        [[REST:%.*]] = arith.subi [[N]], {{%.*}} : index
// CHECK-NEXT:   [[END:%.*]] = arith.minsi %c32, [[REST]] : index
// CHECK-NEXT:   scf.for %r = %c0 to [[END]] step %c1 {

// -----

// A product that begins inside of a tile's rows, by a number that is not known, may read the next tile, too: all are
// packed.
func.func @main(%x: tensor<128x32xbf16>, %p: tensor<1x16x32x2xbf16>, %n: tensor<i64>) -> tensor<128x32xf32> attributes {extents = ["n"]} {
  %y = loop.kernel @between ins(%A = %x : tensor<128x32xbf16>, %B = %p : tensor<1x16x32x2xbf16>) outs(%C : tensor<128x32xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c32 = arith.constant 32 : index
    %c128 = arith.constant 128 : index
    %rows = loop.alloc : memref<4x1x32x32xbf16, #loop.space<register>>
    scf.for %tile = %c0 to %c4 step %c1 {
      scf.for %m = %c0 to %c32 step %c1 {
        %first = arith.muli %tile, %c32 : index
        %i = arith.addi %first, %m : index
        task.for (%k) in #task.map<repeat(32)> {
          %a = loop.load %A[%i, %k] : memref<128x32xbf16>
          loop.store %a, %rows[%tile, %c0, %m, %k] : memref<4x1x32x32xbf16, #loop.space<register>>
        }
      }
    }
    scf.for %m = %c0 to %c128 step %c32 {
      %acc = loop.alloc : memref<32x32xf32, #loop.space<register>>
      %t = arith.divui %m, %c32 : index
      loop.multiply_tiles %acc[%c0, %c0] = %rows[%t, %c0, %thread, %c0] * %B[%c0, %c0, %c0, %c0]
          rows 32 depth 32 stride 32 taps [0] apart 1024
          : memref<32x32xf32, #loop.space<register>>, memref<4x1x32x32xbf16, #loop.space<register>>, memref<1x16x32x2xbf16>
      task.for (%r, %j) in #task.map<repeat(32, 32)> {
        %i = arith.addi %m, %r : index
        %s = loop.load %acc[%r, %j] : memref<32x32xf32, #loop.space<register>>
        loop.store %s, %C[%i, %j] : memref<128x32xf32>
      }
    }
  }
  func.return %y : tensor<128x32xf32>
}

// CHECK:      loop.kernel @between
// CHECK:      [[N:%.*]] = arith.index_cast
// CHECK:      scf.for %tile = %c0 to %c4 step %c1 {
// CHECK-NEXT:   scf.for %m
// CHECK:      scf.for {{%.*}} = %c0 to [[N]] step %c32 {
