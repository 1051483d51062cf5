// RUN: treadle-opt %s -p task-lower | filecheck %s

// Hidet (ASPLOS 2023), figure 11: the basic mappings. `repeat(2, 2)`: one worker, (0,0), (0,1), (1,0), (1,1).
// CHECK-LABEL: func.func @repeat
// CHECK-DAG:     [[C0:%[a-z0-9_]+]] = arith.constant 0 : index
// CHECK-DAG:     [[C1:%[a-z0-9_]+]] = arith.constant 1 : index
// CHECK-DAG:     [[C2:%[a-z0-9_]+]] = arith.constant 2 : index
// CHECK:         scf.for %i = [[C0]] to [[C2]] step [[C1]] {
// CHECK-NEXT:      scf.for %j = [[C0]] to [[C2]] step [[C1]] {
// CHECK-NEXT:        "test.op"(%i, %j) : (index, index) -> ()
// CHECK-NEXT:      }
// CHECK-NEXT:    }
// CHECK-NEXT:    func.return
func.func @repeat() {
  task.for (%i, %j) in #task.map<repeat(2, 2)> {
    "test.op"(%i, %j) : (index, index) -> ()
  }
  func.return
}

// `spatial(2, 2)`: each of four workers does the one task (w / 2, w % 2).
// CHECK-LABEL: func.func @spatial(%w: index)
// CHECK-NEXT:    [[C2:%[a-z0-9_]+]] = arith.constant 2 : index
// CHECK-NEXT:    %i = arith.divui %w, [[C2]] : index
// CHECK-NEXT:    %j = arith.remui %w, [[C2]] : index
// CHECK-NEXT:    "test.op"(%i, %j) : (index, index) -> ()
// CHECK-NEXT:    func.return
func.func @spatial(%w: index) {
  task.for (%i, %j) in #task.map<spatial(2, 2)>(%w) {
    "test.op"(%i, %j) : (index, index) -> ()
  }
  func.return
}
