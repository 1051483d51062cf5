// RUN: treadle-opt %s -p loop-skip-padding --split-input-file | filecheck %s

// The batch is the block's; rows are a loop's, of which tiles of 8 are computed whole. Loops inside stay as they are.
func.func @main(%x: tensor<8x512x64xf32>, %batch: tensor<i64>, %seq: tensor<i64>) -> tensor<8x512x64xf32>
    attributes {extents = ["batch", "seq"]} {
  %y = loop.kernel @k ins(%A = %x : tensor<8x512x64xf32>) outs(%C : tensor<8x512x64xf32>)
      requires [#graph.required<d0 < 0, d1 < 1>] grid(%block in 8) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c8 = arith.constant 8 : index
    %c512 = arith.constant 512 : index
    %c1 = arith.constant 1 : index
    scf.for %m = %c0 to %c512 step %c8 {
      scf.for %r = %c0 to %c8 step %c1 {
        %i = arith.addi %m, %r : index
        task.for (%n) in #task.map<repeat(64)> {
          %v = loop.load %A[%block, %i, %n] : memref<8x512x64xf32>
          loop.store %v, %C[%block, %i, %n] : memref<8x512x64xf32>
        }
      }
    }
  }
  func.return %y : tensor<8x512x64xf32>
}

// CHECK:      loop.kernel @k ins(%A = %x : {{.*}}, %batch_1 = %batch : tensor<i64>, %seq_1 = %seq : tensor<i64>)
// CHECK:      [[B:%.*]] = loop.load %batch_1[] : memref<i64>
// CHECK-NEXT: [[MOST:%.*]] = arith.constant 8 : i64
// CHECK-NEXT: [[LEAST:%.*]] = arith.minsi [[B]], [[MOST]] : i64
// CHECK-NEXT: [[ZERO:%.*]] = arith.constant 0 : i64
// CHECK-NEXT: [[NOT_BELOW:%.*]] = arith.maxsi [[LEAST]], [[ZERO]] : i64
// CHECK-NEXT: [[BATCH:%.*]] = arith.index_cast [[NOT_BELOW]] : i64 to index
// CHECK:      loop.load %seq_1[] : memref<i64>
// CHECK:      [[SEQ:%.*]] = arith.index_cast
// CHECK-NEXT: [[RUNS:%.*]] = arith.cmpi slt, %block, [[BATCH]] : index
// CHECK-NEXT: scf.if [[RUNS]] {
// CHECK:        scf.for %m = %c0 to [[SEQ]] step %c8 {
// CHECK-NEXT:     scf.for %r = %c0 to %c8 step %c1 {
// CHECK-NOT:    scf.if

// -----

// Rows of a merged dimension: the batch ends the loop, and a tile of 8 rows may begin in one sequence of 20 and end in
// the next, so that (row + 7) mod 20 - 7 is compared. The loop itself decides what its block would.
func.func @main(%x: tensor<160x64xf32>, %batch: tensor<i64>, %seq: tensor<i64>) -> tensor<160x64xf32>
    attributes {extents = ["batch", "seq"]} {
  %y = loop.kernel @k ins(%A = %x : tensor<160x64xf32>) outs(%C : tensor<160x64xf32>)
      requires [#graph.required<d0 floordiv 20 < 0, d0 mod 20 < 1>] grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c8 = arith.constant 8 : index
    %c160 = arith.constant 160 : index
    %c1 = arith.constant 1 : index
    scf.for %m = %c0 to %c160 step %c8 {
      scf.for %r = %c0 to %c8 step %c1 {
        %i = arith.addi %m, %r : index
        task.for (%n) in #task.map<repeat(64)> {
          %v = loop.load %A[%i, %n] : memref<160x64xf32>
          loop.store %v, %C[%i, %n] : memref<160x64xf32>
        }
      }
    }
  }
  func.return %y : tensor<160x64xf32>
}

// CHECK:      [[BATCH:%.*]] = arith.index_cast
// CHECK:      [[SEQ:%.*]] = arith.index_cast
// CHECK-NOT:  scf.if
// CHECK:      [[C20:%.*]] = arith.constant 20 : index
// CHECK-NEXT: [[END:%.*]] = arith.muli [[BATCH]], [[C20]] : index
// CHECK-NEXT: scf.for %m = %c0 to [[END]] step %c8 {
// CHECK:        arith.remui
// CHECK:        [[RUNS:%.*]] = arith.cmpi slt, {{%.*}}, [[SEQ]] : index
// CHECK-NEXT:   scf.if [[RUNS]] {
// CHECK-NEXT:     scf.for %r = %c0 to %c8 step %c1 {

// -----

// Two results: skipped is what neither needs. Threads of a block agree, so that barriers are inside the branch.
func.func @main(%x: tensor<96xf32>, %n: tensor<i64>, %m: tensor<i64>) -> (tensor<96xf32>, tensor<97xf32>)
    attributes {extents = ["n", "m"]} {
  %y, %z = loop.kernel @k ins(%A = %x : tensor<96xf32>) outs(%C : tensor<96xf32>, %D : tensor<97xf32>)
      requires [#graph.required<d0 < 0, d0 < 1>, #graph.required<d0 - 1 < 0>] grid(%block in 3) threads(%thread in 32) {
    %c32 = arith.constant 32 : index
    %c1 = arith.constant 1 : index
    %first = arith.muli %block, %c32 : index
    %i = arith.addi %first, %thread : index
    %next = arith.addi %i, %c1 : index
    %shared = loop.alloc : memref<32xf32, #loop.space<shared>>
    %v = loop.load %A[%i] : memref<96xf32>
    loop.store %v, %shared[%thread] : memref<32xf32, #loop.space<shared>>
    loop.barrier
    %w = loop.load %shared[%thread] : memref<32xf32, #loop.space<shared>>
    loop.store %w, %C[%i] : memref<96xf32>
    loop.store %w, %D[%next] : memref<97xf32>
  }
  func.return %y, %z : tensor<96xf32>, tensor<97xf32>
}

// CHECK-NOT:  %m_1
// CHECK:      [[N:%.*]] = arith.index_cast
// CHECK:      %shared = loop.alloc
// CHECK:      [[FIRST:%.*]] = arith.muli %block, {{.*}} : index
// CHECK-NEXT: [[RUNS:%.*]] = arith.cmpi slt, [[FIRST]], [[N]] : index
// CHECK-NEXT: scf.if [[RUNS]] {
// CHECK:        loop.barrier

// -----

// A sum over rows is carried from one iteration to the next: no row is skipped, and nothing is left out.
func.func @main(%x: tensor<64x16xf32>, %n: tensor<i64>) -> tensor<64x16xf32> attributes {extents = ["n"]} {
  %y = loop.kernel @running ins(%A = %x : tensor<64x16xf32>) outs(%C : tensor<64x16xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c16 = arith.constant 16 : index
    %c64 = arith.constant 64 : index
    %zero = arith.constant 0.0 : f32
    %sum = loop.alloc : memref<16xf32, #loop.space<register>>
    task.for (%j) in #task.map<repeat(16)> {
      loop.store %zero, %sum[%j] : memref<16xf32, #loop.space<register>>
    }
    scf.for %i = %c0 to %c64 step %c1 {
      scf.for %j = %c0 to %c16 step %c1 {
        %a = loop.load %A[%i, %j] : memref<64x16xf32>
        %b = loop.load %sum[%j] : memref<16xf32, #loop.space<register>>
        %s = arith.addf %a, %b : f32
        loop.store %s, %sum[%j] : memref<16xf32, #loop.space<register>>
        loop.store %s, %C[%i, %j] : memref<64x16xf32>
      }
    }
  }
  func.return %y : tensor<64x16xf32>
}

// CHECK:      loop.kernel @running ins(%A = %x : tensor<64x16xf32>) outs(%C : tensor<64x16xf32>) grid
// CHECK:      scf.for %i = %c0 to %c64 step %c1 {
// CHECK-NOT:  scf.if

// -----

// A row's buffer is made outside, but each row stores what it reads: rows are skipped. Where a row reads what the row
// before it has stored, they are not.
func.func @main(%x: tensor<64x16xf32>, %n: tensor<i64>) -> (tensor<64x16xf32>, tensor<64x16xf32>)
    attributes {extents = ["n"]} {
  %y = loop.kernel @own ins(%A = %x : tensor<64x16xf32>) outs(%C : tensor<64x16xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c16 = arith.constant 16 : index
    %c64 = arith.constant 64 : index
    %row = loop.alloc : memref<16xf32, #loop.space<register>>
    scf.for %i = %c0 to %c64 step %c1 {
      scf.for %j = %c0 to %c16 step %c1 {
        %a = loop.load %A[%i, %j] : memref<64x16xf32>
        loop.store %a, %row[%j] : memref<16xf32, #loop.space<register>>
        %b = loop.load %row[%j] : memref<16xf32, #loop.space<register>>
        loop.store %b, %C[%i, %j] : memref<64x16xf32>
      }
    }
  }
  %z = loop.kernel @before ins(%A = %x : tensor<64x16xf32>) outs(%C : tensor<64x16xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 1) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c16 = arith.constant 16 : index
    %c64 = arith.constant 64 : index
    %zero = arith.constant 0.0 : f32
    %rows = loop.alloc : memref<2x16xf32, #loop.space<register>>
    scf.for %i = %c0 to %c64 step %c1 {
      scf.for %j = %c0 to %c16 step %c1 {
        %a = loop.load %A[%i, %j] : memref<64x16xf32>
        %at = arith.remui %i, %c2 : index
        loop.store %a, %rows[%at, %j] : memref<2x16xf32, #loop.space<register>>
        %next = arith.addi %i, %c1 : index
        %other = arith.remui %next, %c2 : index
        %later = arith.cmpi sgt, %i, %c0 : index
        %b = loop.load %rows[%other, %j] where %later else %zero : memref<2x16xf32, #loop.space<register>>
        loop.store %b, %C[%i, %j] : memref<64x16xf32>
      }
    }
  }
  func.return %y, %z : tensor<64x16xf32>, tensor<64x16xf32>
}

// CHECK:      loop.kernel @own
// CHECK:      [[N:%.*]] = arith.index_cast
// CHECK:      scf.for %i = %c0 to [[N]] step %c1 {
// CHECK:      loop.kernel @before
// CHECK:      scf.for {{%.*}} = {{%.*}} to %c64{{.*}} step

// -----

// Where @main has no extents, as in a group by itself, everything is computed.
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %y = loop.kernel @alone ins(%A = %x : tensor<64xf32>) outs(%C : tensor<64xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 64) threads(%thread in 1) {
    %a = loop.load %A[%block] : memref<64xf32>
    loop.store %a, %C[%block] : memref<64xf32>
  }
  func.return %y : tensor<64xf32>
}

// CHECK:      loop.kernel @alone ins(%A = %x : tensor<64xf32>) outs(%C : tensor<64xf32>) grid
// CHECK-NOT:  scf.if

// -----

// Two branches of a block that store other columns: each is skipped where none of its own are needed, which is never so
// of the first column. The loops of rows end by themselves.
func.func @main(%x: tensor<64x48xf32>, %rows: tensor<i64>, %columns: tensor<i64>) -> tensor<64x48xf32>
    attributes {extents = ["rows", "columns"]} {
  %y = loop.kernel @k ins(%A = %x : tensor<64x48xf32>) outs(%C : tensor<64x48xf32>)
      requires [#graph.required<d0 < 0, d1 < 1>] grid(%block in 2) threads(%thread in 1) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %c32 = arith.constant 32 : index
    %c64 = arith.constant 64 : index
    %first = arith.cmpi slt, %block, %c1 : index
    scf.if %first {
      %panel = loop.alloc : memref<32xf32, #loop.space<register>>
      task.for (%n) in #task.map<repeat(32)> {
        %v = loop.load %A[%c0, %n] : memref<64x48xf32>
        loop.store %v, %panel[%n] : memref<32xf32, #loop.space<register>>
      }
      scf.for %m = %c0 to %c64 step %c8 {
        scf.for %r = %c0 to %c8 step %c1 {
          %i = arith.addi %m, %r : index
          task.for (%n) in #task.map<repeat(32)> {
            %v = loop.load %panel[%n] : memref<32xf32, #loop.space<register>>
            loop.store %v, %C[%i, %n] : memref<64x48xf32>
          }
        }
      }
    } else {
      scf.for %m = %c0 to %c64 step %c8 {
        scf.for %r = %c0 to %c8 step %c1 {
          %i = arith.addi %m, %r : index
          task.for (%n) in #task.map<repeat(16)> {
            %j = arith.addi %n, %c32 : index
            %v = loop.load %A[%i, %j] : memref<64x48xf32>
            loop.store %v, %C[%i, %j] : memref<64x48xf32>
          }
        }
      }
    }
  }
  func.return %y : tensor<64x48xf32>
}

// CHECK:      grid(%block in 2) threads(%thread in 1) {
// CHECK:      [[ROWS:%.*]] = arith.index_cast
// CHECK:      [[COLUMNS:%.*]] = arith.index_cast
// CHECK:      scf.if %first {
// CHECK-NEXT:   %panel = loop.alloc
// CHECK:        scf.for %m = %c0 to [[ROWS]] step %c8 {
// CHECK-NOT:      scf.if
// CHECK:      } else {
// CHECK-NEXT:   [[FIRST:%.*]] = arith.constant 32 : index
// CHECK-NEXT:   [[SOME:%.*]] = arith.cmpi slt, [[FIRST]], [[COLUMNS]] : index
// CHECK-NEXT:   scf.if [[SOME]] {
// CHECK-NEXT:     scf.for %{{.*}} = %c0 to [[ROWS]] step %c8 {
// CHECK-NOT:        scf.if

// -----

// Tiles of 8 rows, each of two blocks: of the condition on rows, the one on blocks that loop-to-c looks for.
func.func @main(%x: tensor<64x16xf32>, %n: tensor<i64>) -> tensor<64x16xf32> attributes {extents = ["n"]} {
  %y = loop.kernel @rows ins(%A = %x : tensor<64x16xf32>) outs(%C : tensor<64x16xf32>)
      requires [#graph.required<d0 < 0>] grid(%block in 16) threads(%thread in 1) {
    %c2 = arith.constant 2 : index
    %c8 = arith.constant 8 : index
    %tile = arith.divui %block, %c2 : index
    %half = arith.remui %block, %c2 : index
    %first = arith.muli %tile, %c8 : index
    task.for (%r, %j) in #task.map<repeat(8, 8)> {
      %i = arith.addi %first, %r : index
      %column = arith.muli %half, %c8 : index
      %at = arith.addi %column, %j : index
      %v = loop.load %A[%i, %at] : memref<64x16xf32>
      loop.store %v, %C[%i, %at] : memref<64x16xf32>
    }
  }
  func.return %y : tensor<64x16xf32>
}

// CHECK:      [[N:%.*]] = arith.index_cast
// CHECK:      [[MORE:%.*]] = arith.addi [[N]], %{{.*}} : index
// CHECK:      [[TILES:%.*]] = arith.divui [[MORE]], %{{.*}} : index
// CHECK:      [[BLOCKS:%.*]] = arith.muli [[TILES]], %{{.*}} : index
// CHECK-NEXT: [[RUNS:%.*]] = arith.cmpi slt, %block, [[BLOCKS]] : index
// CHECK-NEXT: scf.if [[RUNS]] {
