// RUN: not treadle-opt %s 2>&1 | filecheck %s

func.func @main(%x: f32) -> f32 {
  %y = arith.addf %x, %z : f32
  func.return %y : f32
}

// CHECK: malformed_ir.mlir:{{.*}}: {{.*}}z
// CHECK-NOT: Traceback
