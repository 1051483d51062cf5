"""Compiled kernels on a real GPU: launches, the arena, shared memory. For the header see `conformance`."""

import numpy as np
import pytest

from treadle.backends.cuda.compiler import Unit, compile_cubin
from treadle.backends.cuda.driver import PycudaDriver
from treadle.backends.cuda.executor import BufferRef, CudaProgram, Launch, TensorSpec
from treadle.target import Target

pytestmark = pytest.mark.gpu

F32 = np.dtype(np.float32)
SIZE = 256


def test_two_kernels_pass_a_tensor_through_the_arena(driver: PycudaDriver) -> None:
    text = """extern "C" __global__ void add(const float *a, const float *b, float *c) {
  c[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x];
}"""
    image = compile_cubin(Unit("add", text), Target.for_capability(*driver.capability)).image
    arena, x, bias = BufferRef("arena", 256), BufferRef("input", 0), BufferRef("constant", 0)
    shape = ((1, 1, 1), (SIZE, 1, 1))
    launches = [
        Launch("add", image, *shape, (x, bias, arena)),
        Launch("add", image, *shape, (arena, x, BufferRef("output", 0))),
    ]
    values, constant = np.random.default_rng(0).standard_normal((2, SIZE), np.float32)
    spec = TensorSpec("x", (SIZE,), F32)
    with CudaProgram(driver, launches, [spec], [spec], [constant], 256 + 4 * SIZE) as program:
        (result,) = program.run([values])
        assert all(seconds > 0 for seconds in program.measure([values], repeats=3))
    np.testing.assert_array_equal(result, values + constant + values)


def test_dynamic_shared_memory_beyond_48_kib(driver: PycudaDriver) -> None:
    text = """#include "treadle_cuda.h"
extern "C" __global__ void turn(const float *x, float *y) {
  extern __shared__ float s[];
  const int t = threadIdx.x;
  s[t + 16000] = x[t];
  treadle_barrier();
  y[t] = s[16255 - t];
}"""
    image = compile_cubin(Unit("turn", text), Target.for_capability(*driver.capability)).image
    buffers = (BufferRef("input", 0), BufferRef("output", 0))
    launch = Launch("turn", image, (1, 1, 1), (SIZE, 1, 1), buffers, dynamic_shared=65024)
    x, spec = np.arange(SIZE, dtype=np.float32), TensorSpec("x", (SIZE,), F32)
    with CudaProgram(driver, [launch], [spec], [spec]) as program:
        np.testing.assert_array_equal(program.run([x])[0], x[::-1])
