// RUN: not treadle-opt %s --to everything 2>&1 | filecheck %s

builtin.module {
}

// CHECK: treadle-opt: unknown stage 'everything'; accepted: import, graph, define, fuse
// CHECK-NOT: Traceback
