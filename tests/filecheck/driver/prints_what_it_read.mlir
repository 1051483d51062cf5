// RUN: treadle-opt %s | filecheck %s
// RUN: xdsl-opt %s | filecheck %s

func.func @main(%x: f32) -> f32 {
  func.return %x : f32
}

// CHECK: func.func @main(%x: f32) -> f32 {
// CHECK-NEXT: func.return %x : f32
