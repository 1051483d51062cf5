// RUN: treadle-opt %s | treadle-opt | filecheck %s

// CHECK: schedule.program @dense for "cuda" {
// CHECK-NEXT: %i, %j, %k = schedule.axes 2 spatial, 1 reduction
// CHECK-NEXT: %ti, %tj = schedule.sample_tile "threads" 2 from [1, 2, 4, 8, 16, 32] product 64 to 512 step 32 taken [8, 16]
// CHECK-NEXT: %vi, %vj = schedule.sample_tile "virtual" 2 from [1, 2, 4] product 1 to 8
// CHECK-NEXT: %ri, %rj = schedule.sample_tile "registers" 2 from [1, 3] divisors of %i beside (%vi, %vj) product 4 to 128
// CHECK-NEXT: %kd = schedule.sample "depth" from [4, 8] weights [0.75, 0.25] taken 8
// CHECK-NEXT: %i0, %i1, %i2, %i3 = schedule.split %i by (%vi, %ti, %ri)
// CHECK-NEXT: %j0, %j1, %j2, %j3 = schedule.split %j by (%vj, %tj, 4)
// CHECK-NEXT: %k0, %k1 = schedule.split %k by (%kd)
// CHECK-NEXT: schedule.arrange block(%i0, %j0) repeat(%i1, %j1) thread(%i2, %j2) loop(%k0) loop(%k1) repeat(%i3, %j3) min_blocks_per_sm 2 checks_borders
// CHECK-NEXT: %n = schedule.sample "buffers" from [1, 2]
// CHECK-NEXT: schedule.stage 0 at %k0 in "shared" vector 4 buffers %n
// CHECK-NEXT: schedule.stage 1 at %k0 in "shared" buffers 2 async
// CHECK-NEXT: %place = schedule.sample "place" from [0, 1, 2] taken 2
// CHECK-NEXT: schedule.stage 0 at %place of (%k0, %k1) in "register"
// CHECK-NEXT: schedule.stage 1 at 0 of (%k0) in "register"
// CHECK-NEXT: schedule.mark unroll %k1
// CHECK-NEXT: %u = schedule.sample "unroll" from [0, 16, 64, 512]
// CHECK-NEXT: schedule.unroll %u
schedule.program @dense for "cuda" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %ti, %tj = schedule.sample_tile "threads" 2 from [1, 2, 4, 8, 16, 32] product 64 to 512 step 32 taken [8, 16]
  %vi, %vj = schedule.sample_tile "virtual" 2 from [1, 2, 4] product 1 to 8
  %ri, %rj = schedule.sample_tile "registers" 2 from [1, 3] divisors of %i beside (%vi, %vj) product 4 to 128
  %kd = schedule.sample "depth" from [4, 8] weights [0.75, 0.25] taken 8
  %i0, %i1, %i2, %i3 = schedule.split %i by (%vi, %ti, %ri)
  %j0, %j1, %j2, %j3 = schedule.split %j by (%vj, %tj, 4)
  %k0, %k1 = schedule.split %k by (%kd)
  schedule.arrange block(%i0, %j0) repeat(%i1, %j1) thread(%i2, %j2) loop(%k0) loop(%k1) repeat(%i3, %j3) min_blocks_per_sm 2 checks_borders
  %n = schedule.sample "buffers" from [1, 2]
  schedule.stage 0 at %k0 in "shared" vector 4 buffers %n
  schedule.stage 1 at %k0 in "shared" buffers 2 async
  %place = schedule.sample "place" from [0, 1, 2] taken 2
  schedule.stage 0 at %place of (%k0, %k1) in "register"
  schedule.stage 1 at 0 of (%k0) in "register"
  schedule.mark unroll %k1
  %u = schedule.sample "unroll" from [0, 16, 64, 512]
  schedule.unroll %u
}

// CHECK: schedule.program @convolution for "cpu" {
// CHECK: %p = schedule.fuse %h, %w
// CHECK-NEXT: %a, %b = schedule.sample_tile "tile" 2 from ([1, 2, 3], [16, 32]) product 16 to 64 taken [2, 16]
// CHECK: schedule.mark vector %c1
schedule.program @convolution for "cpu" {
  %h, %w, %c, %k = schedule.axes 3 spatial, 1 reduction
  %p = schedule.fuse %h, %w
  %a, %b = schedule.sample_tile "tile" 2 from ([1, 2, 3], [16, 32]) product 16 to 64 taken [2, 16]
  %p0, %p1 = schedule.split %p by (%a)
  %c0, %c1 = schedule.split %c by (%b)
  schedule.arrange block(%p0, %c0) repeat(%p1) loop(%k) repeat(%c1)
  schedule.mark vector %c1
}

// CHECK: schedule.program @tensor_cores for "cuda" {
// CHECK: schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2) mma(%i3, %j3, %k2)
// CHECK: schedule.swizzle %i0, %j0 by 8
// CHECK-NEXT: schedule.unroll 16
schedule.program @tensor_cores for "cuda" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %i0, %i1, %i2, %i3 = schedule.split %i by (2, 2, 16)
  %j0, %j1, %j2, %j3 = schedule.split %j by (2, 1, 16)
  %k0, %k1, %k2 = schedule.split %k by (2, 16)
  schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2) mma(%i3, %j3, %k2)
  schedule.stage 0 at %k0 in "shared" vector 8 buffers 3 async
  schedule.stage 1 at %k0 in "shared" vector 8 buffers 3 async
  schedule.swizzle %i0, %j0 by 8
  schedule.unroll 16
}

// CHECK: schedule.program @template for "cuda" {
// CHECK-NEXT: %b = schedule.sample "block" from [[64, 64], [128, 128]] taken [64, 64]
// CHECK-NEXT: %o = schedule.sample "order" from ["k", "m"]
// CHECK-NEXT: %s = schedule.sample "pack" from [true, false] taken false
// CHECK-NEXT: schedule.template "matmul_mma" {block = %b, warps = [2, 2], order = %o, pack = %s, stages = 4}
schedule.program @template for "cuda" {
  %b = schedule.sample "block" from [[64, 64], [128, 128]] taken [64, 64]
  %o = schedule.sample "order" from ["k", "m"]
  %s = schedule.sample "pack" from [true, false] taken false
  schedule.template "matmul_mma" {block = %b, warps = [2, 2], order = %o, pack = %s, stages = 4}
}
