// RUN: treadle-opt %s -p graph-inline | filecheck %s

// SiLU reads its argument once.
func.func @silu(%x: tensor<8xf32>) -> tensor<8xf32> {
  %s = graph.compute "sigmoid" (%i) {
    %a = graph.at %x[%i] : tensor<8xf32>
    %n = arith.negf %a : f32
    %e = math.exp %n : f32
    %one = arith.constant 1.0 : f32
    %d = arith.addf %one, %e : f32
    %q = arith.divf %one, %d : f32
    graph.yield %q : f32
  } : tensor<8xf32>
  %y = graph.compute "mul" (%i) {
    %a = graph.at %x[%i] : tensor<8xf32>
    %b = graph.at %s[%i] : tensor<8xf32>
    %p = arith.mulf %a, %b : f32
    graph.yield %p : f32
  } : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// CHECK-LABEL: func.func @silu
// CHECK-NEXT:    %y = graph.compute "sigmoid mul" ([[I:%[0-9a-z_]+]]) {
// CHECK-NEXT:      [[A:%[0-9a-z_]+]] = graph.at %x[[[I]]] : tensor<8xf32>
// CHECK-NOT:       graph.at
// CHECK:           graph.yield
// CHECK-NEXT:    } : tensor<8xf32>
// CHECK-NEXT:    func.return %y

// An exponential is not repeated by a broadcast; a transpose of an argument is, by each reader.
func.func @kept(%x: tensor<4x8xf32>, %v: tensor<8xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  %e = graph.compute "exp" (%i) {
    %a = graph.at %v[%i] : tensor<8xf32>
    %p = math.exp %a : f32
    graph.yield %p : f32
  } : tensor<8xf32>
  %t = graph.compute "transpose" (%i, %j) {
    %a = graph.at %x[%j, %i] : tensor<4x8xf32>
    graph.yield %a : f32
  } : tensor<8x4xf32>
  %y = graph.compute "add" (%i, %j) {
    %a = graph.at %t[%i, %j] : tensor<8x4xf32>
    %b = graph.at %e[%i] : tensor<8xf32>
    %p = arith.addf %a, %b : f32
    graph.yield %p : f32
  } : tensor<8x4xf32>
  %z = graph.compute "neg" (%i, %j) {
    %a = graph.at %t[%i, %j] : tensor<8x4xf32>
    %n = arith.negf %a : f32
    graph.yield %n : f32
  } : tensor<8x4xf32>
  func.return %y, %z : tensor<8x4xf32>, tensor<8x4xf32>
}

// CHECK-LABEL: func.func @kept
// CHECK:         %e = graph.compute "exp"
// CHECK:         %y = graph.compute "transpose add" ([[I:%[0-9a-z_]+]], [[J:%[0-9a-z_]+]]) {
// CHECK:           graph.at %x[[[J]], [[I]]] : tensor<4x8xf32>
// CHECK:           graph.at %e[[[I]]] : tensor<8xf32>
// CHECK:         %z = graph.compute "transpose neg"

// One comparison is repeated for each of a row's readers: cheaper than a kernel that stores it. A widened element is
// read narrow by every reader.
func.func @cheap(%mask: tensor<8xi64>, %x: tensor<4x8xf32>, %h: tensor<4x8xf16>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %c = graph.compute "cast" (%i) {
    %a = graph.at %mask[%i] : tensor<8xi64>
    %zero = arith.constant 0 : i64
    %p = arith.cmpi ne, %a, %zero : i64
    graph.yield %p : i1
  } : tensor<8xi1>
  %y = graph.compute "where" (%i, %j) {
    %p = graph.at %c[%j] : tensor<8xi1>
    %a = graph.at %x[%i, %j] : tensor<4x8xf32>
    %low = arith.constant -1.0 : f32
    %s = arith.select %p, %a, %low : f32
    graph.yield %s : f32
  } : tensor<4x8xf32>
  %w = graph.compute "cast" (%i, %j) {
    %a = graph.at %h[%i, %j] : tensor<4x8xf16>
    %f = arith.extf %a : f16 to f32
    graph.yield %f : f32
  } : tensor<4x8xf32>
  %u = graph.compute "neg" (%i, %j) {
    %a = graph.at %w[%i, %j] : tensor<4x8xf32>
    %n = arith.negf %a : f32
    graph.yield %n : f32
  } : tensor<4x8xf32>
  %v = graph.compute "exp" (%i, %j) {
    %a = graph.at %w[%i, %j] : tensor<4x8xf32>
    %n = math.exp %a : f32
    graph.yield %n : f32
  } : tensor<4x8xf32>
  func.return %y, %u, %v : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}

// CHECK-LABEL: func.func @cheap
// CHECK-NEXT:    %y = graph.compute "cast where"
// CHECK:         %u = graph.compute "cast neg"
// CHECK:           graph.at %h
// CHECK:         %v = graph.compute "cast exp"
// CHECK:           graph.at %h

// What rounds a sum stays with it, as its epilogue: a concat could not be one.
func.func @rounds(%x: tensor<4x8xf32>, %z: tensor<4xbf16>) -> tensor<8xbf16> {
  %s = graph.compute "sum" (%i) {
    %r = graph.reduce add (%k in 8) {
      %a = graph.at %x[%i, %k] : tensor<4x8xf32>
      graph.yield %a : f32
    }
    graph.yield %r : f32
  } : tensor<4xf32>
  %n = graph.compute "cast" (%i) {
    %a = graph.at %s[%i] : tensor<4xf32>
    %t = arith.truncf %a : f32 to bf16
    graph.yield %t : bf16
  } : tensor<4xbf16>
  %c = graph.compute "concat" (%i) {
    %four = arith.constant 4 : index
    %before = arith.cmpi slt, %i, %four : index
    %zero = arith.constant 0.0 : bf16
    %j = arith.subi %i, %four : index
    %behind = arith.cmpi sge, %i, %four : index
    %b = graph.at %z[%j] where %behind else %zero : tensor<4xbf16>
    %a = graph.at %n[%i] where %before else %b : tensor<4xbf16>
    graph.yield %a : bf16
  } : tensor<8xbf16>
  func.return %c : tensor<8xbf16>
}

// CHECK-LABEL: func.func @rounds
// CHECK:         [[N:%[0-9a-z_]+]] = graph.compute "cast"
// CHECK:         graph.compute "concat"
// CHECK:           graph.at [[N]]

// What rounds elements that no product or sum leads to goes into the concat, such as halves that are turned.
func.func @turns(%x: tensor<8xbf16>) -> tensor<8xbf16> {
  %f = graph.compute "add" (%i) {
    %four = arith.constant 4 : index
    %j = arith.addi %i, %four : index
    %a = graph.at %x[%i] : tensor<8xbf16>
    %b = graph.at %x[%j] : tensor<8xbf16>
    %c = arith.extf %a : bf16 to f32
    %d = arith.extf %b : bf16 to f32
    %e = arith.addf %c, %d : f32
    graph.yield %e : f32
  } : tensor<4xf32>
  %n = graph.compute "cast" (%i) {
    %a = graph.at %f[%i] : tensor<4xf32>
    %t = arith.truncf %a : f32 to bf16
    graph.yield %t : bf16
  } : tensor<4xbf16>
  %c = graph.compute "concat" (%i) {
    %four = arith.constant 4 : index
    %before = arith.cmpi slt, %i, %four : index
    %behind = arith.cmpi sge, %i, %four : index
    %zero = arith.constant 0.0 : bf16
    %b = graph.at %x[%i] where %behind else %zero : tensor<8xbf16>
    %a = graph.at %n[%i] where %before else %b : tensor<4xbf16>
    graph.yield %a : bf16
  } : tensor<8xbf16>
  func.return %c : tensor<8xbf16>
}

// CHECK-LABEL: func.func @turns
// CHECK:         graph.compute "add"
// CHECK:         graph.compute "cast concat"
// CHECK-NOT:     graph.compute
// CHECK:         func.return

// The quantised result of a product is stored as bytes for a reader with other operands: the product itself would be.
// Without others it is part of what the product is stored as.
func.func @quantised(%x: tensor<4x8xui8>, %p: tensor<1x16x32x4xi8>, %o: tensor<4x8xui8>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %c = graph.packed_matmul %x, %p {columns = 8 : i64} : (tensor<4x8xui8>, tensor<1x16x32x4xi8>) -> tensor<4x8xi32>
  %f = graph.compute "cast" (%i, %j) {
    %a = graph.at %c[%i, %j] : tensor<4x8xi32>
    %b = arith.sitofp %a : i32 to f32
    graph.yield %b : f32
  } : tensor<4x8xf32>
  %q = graph.compute "quantise" (%i, %j) {
    %a = graph.at %f[%i, %j] : tensor<4x8xf32>
    %b = arith.fptoui %a : f32 to ui8
    graph.yield %b : ui8
  } : tensor<4x8xui8>
  %y = graph.compute "sum" (%i, %j) {
    %a = graph.at %q[%i, %j] : tensor<4x8xui8>
    %b = graph.at %o[%i, %j] : tensor<4x8xui8>
    %s = arith.addi %a, %b : ui8
    %r = arith.uitofp %s : ui8 to f32
    graph.yield %r : f32
  } : tensor<4x8xf32>
  %d = graph.packed_matmul %o, %p {columns = 8 : i64} : (tensor<4x8xui8>, tensor<1x16x32x4xi8>) -> tensor<4x8xi32>
  %g = graph.compute "cast" (%i, %j) {
    %a = graph.at %d[%i, %j] : tensor<4x8xi32>
    %b = arith.sitofp %a : i32 to f32
    graph.yield %b : f32
  } : tensor<4x8xf32>
  %t = graph.compute "quantise" (%i, %j) {
    %a = graph.at %g[%i, %j] : tensor<4x8xf32>
    %b = arith.fptoui %a : f32 to ui8
    graph.yield %b : ui8
  } : tensor<4x8xui8>
  %z = graph.compute "dequantise" (%i, %j) {
    %a = graph.at %t[%i, %j] : tensor<4x8xui8>
    %r = arith.uitofp %a : ui8 to f32
    %s = arith.mulf %r, %r : f32
    graph.yield %s : f32
  } : tensor<4x8xf32>
  func.return %y, %z : tensor<4x8xf32>, tensor<4x8xf32>
}

// CHECK-LABEL: func.func @quantised
// CHECK:         [[Q:%[0-9a-z_]+]] = graph.compute "cast quantise"
// CHECK:         graph.compute "sum"
// CHECK:           graph.at [[Q]]
// CHECK:         [[D:%[0-9a-z_]+]] = graph.packed_matmul %o
// CHECK-NEXT:    graph.compute "cast quantise dequantise"
// CHECK-NEXT:      graph.at [[D]]

// What rounds is stored narrow, too, if its reader only widens it for a sum.
func.func @widens(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %n = graph.compute "cast" (%i, %j) {
    %a = graph.at %x[%i, %j] : tensor<4x8xf32>
    %t = arith.truncf %a : f32 to bf16
    graph.yield %t : bf16
  } : tensor<4x8xbf16>
  %w = graph.compute "cast" (%i, %j) {
    %a = graph.at %n[%i, %j] : tensor<4x8xbf16>
    %t = arith.extf %a : bf16 to f32
    graph.yield %t : f32
  } : tensor<4x8xf32>
  %s = graph.compute "sum" (%i) {
    %r = graph.reduce add (%k in 8) {
      %a = graph.at %w[%i, %k] : tensor<4x8xf32>
      graph.yield %a : f32
    }
    graph.yield %r : f32
  } : tensor<4xf32>
  func.return %s : tensor<4xf32>
}

// CHECK-LABEL: func.func @widens
// CHECK:         arith.truncf
// CHECK-NEXT:    graph.yield
// CHECK:         arith.extf
