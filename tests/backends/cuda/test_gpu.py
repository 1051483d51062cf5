"""Compiled kernels on a real GPU: launches, the arena, shared memory, limits. For the header see `conformance`."""

import importlib
from typing import Any

import numpy as np
import pytest

import treadle
from tests.backends.cuda.conformance.cases import all_kernels
from tests.backends.cuda.gpu_graphs import CASES
from tests.helpers.graphs import Graph, random
from treadle.backends.cuda.compiler import Unit, compile_cubin
from treadle.backends.cuda.driver import Device
from treadle.backends.cuda.executor import BufferRef, CudaProgram, Launch, TensorSpec
from treadle.backends.cuda.machine_code import occupancy
from treadle.backends.reference import evaluate_module
from treadle.errors import TreadleError
from treadle.target import Target

pytestmark = pytest.mark.gpu

F32 = np.dtype(np.float32)
SIZE = 256


def test_two_kernels_pass_a_tensor_through_the_arena(driver: Device) -> None:
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


def test_dynamic_shared_memory_beyond_48_kib(driver: Device) -> None:
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


@pytest.mark.parametrize("name", CASES)
def test_an_artifact_computes_what_its_graph_says(name: str) -> None:
    graph = Graph(random(*CASES[name].large))
    module = graph.module(CASES[name].build(graph))
    (expected,) = evaluate_module(module, graph.inputs)
    model = treadle.compile(module, "cuda")
    (actual,) = model(*graph.inputs)
    model.close()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * float(np.abs(expected).max()))


def test_the_target_has_the_limits_that_the_device_tells(driver: Device) -> None:
    major, minor = driver.capability
    target = Target.for_capability(major, minor)
    if target.capability != 10 * major + minor:
        pytest.skip(f"{target.name} stands in for capability {major}.{minor}, whose limits may be others")
    limits = {
        "WARP_SIZE": target.warp_size,
        "MAX_THREADS_PER_BLOCK": target.max_threads_per_block,
        "MAX_THREADS_PER_MULTIPROCESSOR": target.max_warps_per_multiprocessor * target.warp_size,
        "MAX_BLOCKS_PER_MULTIPROCESSOR": target.max_blocks_per_multiprocessor,
        "MAX_REGISTERS_PER_MULTIPROCESSOR": target.registers_per_multiprocessor,
        "MAX_SHARED_MEMORY_PER_BLOCK": target.shared_per_block_static,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": target.shared_per_block,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": target.shared_per_multiprocessor,
    }
    assert {name: driver.attribute(name) for name in limits} == limits


@pytest.mark.parametrize("registers", [32, 64, 100, 168, 176, 255])
def test_occupancy_is_what_the_driver_computes(registers: int, driver: Device) -> None:
    target = Target.for_capability(*driver.capability)
    # Of two limits the compiler obeys the last.
    unit = Unit("kernels", f"{all_kernels()}{_greedy(registers)}")
    cubin = compile_cubin(unit, target, options=[f"--maxrregcount={registers}"])
    cuda: Any = importlib.import_module("cuda.bindings.driver")
    with driver.current("asking for occupancy"):
        status, module = cuda.cuModuleLoadData(cubin.image)
        assert status.value == 0
        for name, used in cubin.resources.items():
            _, function = cuda.cuModuleGetFunction(module, name.encode())
            for threads in (32, 96, 128, 288, 512, 1024):
                for dynamic in (0, 1, 10_000, 40_000):
                    status, blocks = cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, dynamic)
                    assert status.value == 0
                    try:
                        computed = occupancy(used, target, threads, dynamic).blocks
                    except TreadleError:
                        computed = 0
                    assert (name, threads, dynamic, computed) == (name, threads, dynamic, blocks)
        cuda.cuModuleUnload(module)


def _greedy(registers: int) -> str:
    """A kernel that needs more registers than that."""
    loads = " ".join(f"float x{n} = a[{n} * threadIdx.x];" for n in range(registers))
    stores = " ".join(f"a[{n} * threadIdx.x + 1] = x{n * 37 % registers} * x{n};" for n in range(registers))
    return f'extern "C" __global__ void greedy(volatile float *a) {{ {loads} __syncthreads(); {stores} }}\n'
