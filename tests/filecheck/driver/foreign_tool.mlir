// RUN: xdsl-opt %s -p task-lower | filecheck %s

func.func @main(%t: index) {
  task.for (%i) in #task.map<repeat(4)>(%t) {
    "test.op"(%i) : (index) -> ()
  }
  func.return
}

// CHECK: scf.for %i
// CHECK-NEXT: "test.op"(%i)
