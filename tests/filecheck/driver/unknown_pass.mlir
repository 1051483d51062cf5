// RUN: not treadle-opt %s -p no-such-pass 2>&1 | filecheck %s

builtin.module {
}

// CHECK: no-such-pass
