// RUN: treadle-opt %s -p task-lower | filecheck %s

// Hidet (ASPLOS 2023), figure 12 (a): (w / 2, 2 jo + w % 2).
// CHECK-LABEL: func.func @a(%w: index)
// CHECK:         %i = arith.divui %w, [[C2:%[a-z0-9_]+]] : index
// CHECK-NEXT:    [[COLUMN:%[0-9]+]] = arith.remui %w, [[C2]] : index
// CHECK-NEXT:    scf.for %jo = %c0 to %c3 step %c1 {
// CHECK-NEXT:      [[SKIP:%[0-9]+]] = arith.muli %jo, [[C2]] : index
// CHECK-NEXT:      %j = arith.addi [[SKIP]], [[COLUMN]] : index
// CHECK-NEXT:      "test.op"(%i, %j) : (index, index) -> ()
// CHECK-NEXT:    }
func.func @a(%w: index) {
  task.for (%i, %j) in #task.map<repeat(1, 3) * spatial(2, 2)>(%w) {
    "test.op"(%i, %j) : (index, index) -> ()
  }
  func.return
}

// (b), the same parts in the other order, hands out other tasks: (w / 2, 3 (w % 2) + jo).
// CHECK-LABEL: func.func @b(%w: index)
// CHECK:         %i = arith.divui %w, [[C2:%[a-z0-9_]+]] : index
// CHECK-NEXT:    [[COLUMN:%[0-9]+]] = arith.remui %w, [[C2]] : index
// CHECK-NEXT:    [[SKIP:%[0-9]+]] = arith.muli [[COLUMN]], %c3 : index
// CHECK-NEXT:    scf.for %jo = %c0 to %c3 step %c1 {
// CHECK-NEXT:      %j = arith.addi %jo, [[SKIP]] : index
// CHECK-NEXT:      "test.op"(%i, %j) : (index, index) -> ()
// CHECK-NEXT:    }
func.func @b(%w: index) {
  task.for (%i, %j) in #task.map<spatial(2, 2) * repeat(1, 3)>(%w) {
    "test.op"(%i, %j) : (index, index) -> ()
  }
  func.return
}

// (c), three parts: 4 (w / 2) + 2 io + w % 2.
// CHECK-LABEL: func.func @c(%w: index)
// CHECK:         [[PAIR:%[0-9]+]] = arith.divui %w, [[C2:%[a-z0-9_]+]] : index
// CHECK-NEXT:    %c4 = arith.constant 4 : index
// CHECK-NEXT:    [[SKIP:%[0-9]+]] = arith.muli [[PAIR]], %c4 : index
// CHECK-NEXT:    [[LAST:%[0-9]+]] = arith.remui %w, [[C2]] : index
// CHECK-NEXT:    [[OUTSIDE:%[0-9]+]] = arith.addi [[SKIP]], [[LAST]] : index
// CHECK-NEXT:    scf.for %io = %c0 to [[C2]] step %c1 {
// CHECK-NEXT:      [[TWICE:%[0-9]+]] = arith.muli %io, [[C2]] : index
// CHECK-NEXT:      %i = arith.addi [[TWICE]], [[OUTSIDE]] : index
// CHECK-NEXT:      "test.op"(%i) : (index) -> ()
// CHECK-NEXT:    }
func.func @c(%w: index) {
  task.for (%i) in #task.map<spatial(2) * repeat(2) * spatial(2)>(%w) {
    "test.op"(%i) : (index) -> ()
  }
  func.return
}

// (d), column by column: (0,0), (1,0), (0,1), (1,1).
// CHECK-LABEL: func.func @d()
// CHECK:         scf.for %j = %c0 to [[C2:%[a-z0-9_]+]] step %c1 {
// CHECK-NEXT:      scf.for %i = %c0 to [[C2]] step %c1 {
// CHECK-NEXT:        "test.op"(%i, %j) : (index, index) -> ()
// CHECK-NEXT:      }
// CHECK-NEXT:    }
func.func @d() {
  task.for (%i, %j) in #task.map<repeat(1, 2) * repeat(2, 1)> {
    "test.op"(%i, %j) : (index, index) -> ()
  }
  func.return
}
