// RUN: treadle-opt %s -p loop-to-c | filecheck %s
// RUN: treadle-opt %s -p loop-to-c -t c | filecheck %s --check-prefix=TEXT

loop.func @exp(%A : memref<64xf32>, %C : memref<64xf32>) grid(%b in 8) threads(%t in 1) comment "Exp /act" {
  %tmp = loop.alloc : memref<8xf32, #loop.space<shared>>
  loop.barrier
  %x = memref.load %A[%b] : memref<64xf32>
  memref.store %x, %tmp[%t] : memref<8xf32, #loop.space<shared>>
  %y = math.exp %x : f32
  memref.store %y, %C[%b] : memref<64xf32>
}

func.func @main() {
  %x = host.buffer input 0 : memref<64xf32>
  %y = host.buffer output 0 : memref<64xf32>
  host.launch @exp(%x, %y) : memref<64xf32>, memref<64xf32>
  host.return
}

// CHECK:       func.func @exp_kernel(%A: memref<64xf32>, %C: memref<64xf32>, %worker: index, %workers: index)
// CHECK-SAME:      attributes {grid = 8 : i64, comment = "Exp /act"} {
// CHECK:         %first = arith.divui %{{.*}}, %workers : index
// CHECK:         %last = arith.divui %{{.*}}, %workers : index
// CHECK-NEXT:    scf.for %b = %first to %last step %{{.*}} {
// CHECK-NEXT:      %tmp = memref.alloca() : memref<8xf32>
// CHECK-NEXT:      %x = memref.load %A[%b] : memref<64xf32>
// CHECK-NEXT:      memref.store %x, %tmp[%{{.*}}] : memref<8xf32>
// CHECK:         func.return
// CHECK:       host.launch @exp_kernel(

// TEXT:       #include "treadle.h"
// TEXT:       /* Exp /act */
// TEXT-NEXT:  void exp_kernel(void *const *args, long worker, long workers) {
// TEXT-NEXT:      const float *restrict A = args[0];
// TEXT-NEXT:      float *restrict C = args[1];
// TEXT-NEXT:      for (long b = 8 * worker / workers; b < 8 * (worker + 1) / workers; b++) {
// TEXT-NEXT:          float tmp[8];
// TEXT-NEXT:          const float x = A[b];
// TEXT-NEXT:          tmp[0] = x;
// TEXT-NEXT:          C[b] = treadle_expf(x);
// TEXT-NEXT:      }
// TEXT-NEXT:  }
// TEXT:       void treadle_run(
// TEXT:           treadle_pool_run(pool, exp_kernel, (void *const[]){inputs[0], outputs[0]}, 8);
