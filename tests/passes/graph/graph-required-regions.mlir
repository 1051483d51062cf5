// RUN: treadle-opt %s -p graph-required-regions --split-input-file | filecheck %s

// A merged dimension, a transpose and a mask carry what is needed; what an unclamped index is computed from is needed
// everywhere, and so is what nobody is known to read.
func.func @main(%x: tensor<8x512xf32>, %t: tensor<4096xf32>, %batch: tensor<i64>, %seq: tensor<i64>)
    -> (tensor<4096xf32>, tensor<8xf32>)
    attributes {extents = ["batch", "seq"],
                output_required = [#graph.required<d0 mod 512 < 1, d0 floordiv 512 < 0>, #graph.required<>]} {
  %h = graph.fused "turn" {
    %0 = graph.compute (%j, %i) {
      %a = graph.at %x[%i, %j] : tensor<8x512xf32>
      graph.yield %a : f32
    } : tensor<512x8xf32>
    graph.yield %0 : tensor<512x8xf32>
  } : tensor<512x8xf32>
  %k = graph.fused "where" {
    %0 = graph.compute (%i) {
      %q = arith.constant 7 : i64
      graph.yield %q : i64
    } : tensor<4096xi64>
    graph.yield %0 : tensor<4096xi64>
  } : tensor<4096xi64>
  %y = graph.fused "merge" {
    %0 = graph.compute (%p) {
      %width = arith.constant 512 : index
      %i = arith.divui %p, %width : index
      %j = arith.remui %p, %width : index
      %a = graph.at %h[%j, %i] : tensor<512x8xf32>
      %n = graph.at %k[%p] : tensor<4096xi64>
      %where = arith.index_cast %n : i64 to index
      %b = graph.at %t[%where] : tensor<4096xf32>
      %s = arith.addf %a, %b : f32
      graph.yield %s : f32
    } : tensor<4096xf32>
    graph.yield %0 : tensor<4096xf32>
  } : tensor<4096xf32>
  %z = graph.fused "sum" {
    %0 = graph.compute (%i) {
      %zero = arith.constant 0.0 : f32
      %n = graph.at %seq[] : tensor<i64>
      %end = arith.index_cast %n : i64 to index
      %s = graph.reduce add (%j in 512) {
        %inside = arith.cmpi slt, %j, %end : index
        %a = graph.at %h[%j, %i] : tensor<512x8xf32>
        %b = arith.select %inside, %a, %zero : f32
        graph.yield %b : f32
      }
      graph.yield %s : f32
    } : tensor<8xf32>
    graph.yield %0 : tensor<8xf32>
  } : tensor<8xf32>
  func.return %y, %z : tensor<4096xf32>, tensor<8xf32>
}

// CHECK:      output_required = [#graph.required<d0 floordiv 512 < 0, d0 mod 512 < 1>, #graph.required<>]
// CHECK:      %h = graph.fused "turn" {
// CHECK:      } requires [#graph.required<d0 < 1>] : tensor<512x8xf32>
// CHECK:      %k = graph.fused "where" {
// CHECK:      {{^ *}}} : tensor<4096xi64>
// CHECK:      %y = graph.fused "merge" {
// CHECK:      } requires [#graph.required<d0 floordiv 512 < 0, d0 mod 512 < 1>] : tensor<4096xf32>
// CHECK:      %z = graph.fused "sum" {
// CHECK:      {{^ *}}} : tensor<8xf32>

// -----

// Nothing is known without extents.
func.func @main(%x: tensor<8xf32>, %n: tensor<i64>) -> tensor<8xf32>
    attributes {output_required = [#graph.required<d0 < 0>]} {
  %y = graph.fused "copy" {
    %0 = graph.compute (%i) {
      %a = graph.at %x[%i] : tensor<8xf32>
      graph.yield %a : f32
    } : tensor<8xf32>
    graph.yield %0 : tensor<8xf32>
  } : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// CHECK:      graph.fused "copy"
// CHECK-NOT:  requires

// -----

// Of rows of which the last of a call is read, those up to it are needed; extents that differ by a constant are one.
func.func @main(%x: tensor<64x8xf32>, %n: tensor<i64>, %last: tensor<i64>) -> tensor<1x8xf32>
    attributes {extents = ["n", "n - 1"], output_required = [#graph.required<>]} {
  %h = graph.fused "rows" {
    %0 = graph.compute (%i, %j) {
      %a = graph.at %x[%i, %j] : tensor<64x8xf32>
      graph.yield %a : f32
    } : tensor<64x8xf32>
    graph.yield %0 : tensor<64x8xf32>
  } : tensor<64x8xf32>
  %y = graph.fused "last" {
    %0 = graph.compute (%i) {
      %e = graph.at %last[] : tensor<i64>
      graph.yield %e : i64
    } : tensor<1xi64>
    %1 = graph.compute (%i, %j) {
      %zero = arith.constant 0 : index
      %e = graph.at %0[%zero] : tensor<1xi64>
      %most = arith.constant 63 : i64
      %least = arith.constant -64 : i64
      %below = arith.minsi %e, %most : i64
      %inside = arith.maxsi %below, %least : i64
      %at = arith.index_cast %inside : i64 to index
      %negative = arith.cmpi slt, %at, %zero : index
      %count = arith.constant 64 : index
      %behind = arith.addi %at, %count : index
      %row = arith.select %negative, %behind, %at : index
      %a = graph.at %h[%row, %j] : tensor<64x8xf32>
      graph.yield %a : f32
    } : tensor<1x8xf32>
    graph.yield %1 : tensor<1x8xf32>
  } : tensor<1x8xf32>
  func.return %y : tensor<1x8xf32>
}

// CHECK:      %h = graph.fused "rows" {
// CHECK:      } requires [#graph.required<d0 < 0>] : tensor<64x8xf32>
// CHECK:      %y = graph.fused "last" {
// CHECK:      } : tensor<1x8xf32>
