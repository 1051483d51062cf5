// RUN: treadle-opt %s -p hopper-form-boxes | filecheck %s

!tile = memref<1x128x64xf16, #loop.swizzle<8, 1, 8>, #loop.space<shared>>
!barriers = memref<1x!hopper.mbarrier, #loop.space<shared>>

// Windows of 3 x 3 pixels, 2 apart, of images with a border of zeros: rows are pixels of all images in order.
loop.func @windows(%x: memref<8x56x56x96xf16>, %C: memref<1xf16>) grid(%b in 49) threads(%t in 128) {
  %tile = loop.alloc : !tile
  %full = loop.alloc : !barriers
  %zero = arith.constant 0.0 : f16
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c9 = arith.constant 9 : index
  %c28 = arith.constant 28 : index
  %c64 = arith.constant 64 : index
  %c96 = arith.constant 96 : index
  %c128 = arith.constant 128 : index
  %c288 = arith.constant 288 : index
  %c784 = arith.constant 784 : index
  %first = arith.muli %b, %c128 : index
  scf.for %tap = %c0 to %c9 step %c1 {
    %above = arith.muli %tap, %c96 : index
    %term = arith.addi %above, %c64 : index
    hopper.bulk_copy to %tile[%c0, %c0, %c0] at %full[%c0] from [%first, %c64] of [6272, 96] {
    ^bb0(%r : index, %c : index):
      %row = arith.addi %first, %r : index
      %k = arith.addi %term, %c : index
      %n = arith.divui %row, %c784 : index
      %rest = arith.remui %row, %c784 : index
      %y = arith.divui %rest, %c28 : index
      %x0 = arith.remui %row, %c28 : index
      %dy = arith.divui %k, %c288 : index
      %at = arith.divui %k, %c96 : index
      %dx = arith.remui %at, %c3 : index
      %channel = arith.remui %k, %c96 : index
      %y2 = arith.muli %y, %c2 : index
      %y3 = arith.addi %y2, %dy : index
      %h = arith.subi %y3, %c1 : index
      %x2 = arith.muli %x0, %c2 : index
      %x3 = arith.addi %x2, %dx : index
      %w = arith.subi %x3, %c1 : index
      %p = arith.cmpi sge, %h, %c0 : index
      %q = arith.cmpi sge, %w, %c0 : index
      %inside = arith.andi %p, %q : i1
      %v = loop.load %x[%n, %h, %w, %channel] where %inside else %zero : memref<8x56x56x96xf16>
      hopper.yield %v : f16
    } : !tile, !barriers
  }
}

// CHECK-LABEL: @windows
// CHECK:         %map_x = hopper.tensor_map %x extents [8, 56, 56, 96] strides [602112, 10752, 192] box [128, 64]
// CHECK-SAME:      pixels [-1, -1] to [-2, -2] by [2, 2] swizzle 128
// CHECK:         %[[N:.*]] = arith.divui %{{.*}}, %c49
// CHECK:         %[[DY:.*]] = arith.divui %tap, %c3
// CHECK:         %[[DX:.*]] = arith.remui %tap, %c3
// CHECK:         hopper.tensor_load %map_x[%[[N]], %{{.*}}, %{{.*}}, %c64{{.*}}] offset [%[[DY]], %[[DX]]] to %tile[

// Weights of the same positions: behind the 96 of one come zeros, not the next one's.
loop.func @weights(%B: memref<864x72xf16>, %C: memref<1xf16>) grid(%b in 1) threads(%t in 128) {
  %tile = loop.alloc : !tile
  %full = loop.alloc : !barriers
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c9 = arith.constant 9 : index
  %c64 = arith.constant 64 : index
  %c96 = arith.constant 96 : index
  scf.for %tap = %c0 to %c9 step %c1 {
    %above = arith.muli %tap, %c96 : index
    %term = arith.addi %above, %c64 : index
    hopper.bulk_copy to %tile[%c0, %c0, %c0] at %full[%c0] from [%c64, %c0] of [96, 72] {
    ^bb0(%r : index, %c : index):
      %k = arith.addi %term, %r : index
      %v = loop.load %B[%k, %c] : memref<864x72xf16>
      hopper.yield %v : f16
    } : !tile, !barriers
  }
}

// CHECK-LABEL: @weights
// CHECK:         hopper.tensor_map %B extents [9, 96, 72] strides [13824, 144] box [1, 128, 64] swizzle 128
// CHECK:         hopper.tensor_load %map_B[%tap, %c64{{.*}}, %{{.*}}] to %tile[
