"""Compiled kernels on a real GPU: launches, the arena, and the header's functions against numpy."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from treadle.backends.cuda.compiler import Unit, compile_cubin
from treadle.backends.cuda.driver import PycudaDriver
from treadle.backends.cuda.executor import BufferRef, CudaProgram, Launch, TensorSpec
from treadle.errors import TreadleError
from treadle.target import Target

pytestmark = pytest.mark.gpu

F32 = np.dtype(np.float32)
SIZE = 256


@pytest.fixture(scope="module")
def driver() -> Iterator[PycudaDriver]:
    """The GPU of this machine; without one the test is skipped."""
    try:
        driver = PycudaDriver()
    except TreadleError as error:
        pytest.skip(str(error))
    yield driver
    driver.close()


def run(
    driver: PycudaDriver,
    body: str,
    inputs: list[np.ndarray],
    output: tuple[int, ...],
    threads: int = SIZE,
    shared: int = 0,
) -> np.ndarray:
    """The output that one block of `threads` computes: `y` from `x0`, `x1`, ... with `t` the thread."""
    parameters = "".join(f"const float *x{i}, " for i in range(len(inputs)))
    text = (
        '#include "treadle_cuda.h"\n'
        f'extern "C" __global__ void k({parameters}float *y) {{ int t = threadIdx.x; {body} }}\n'
    )
    image = compile_cubin(Unit("k", text), Target.for_capability(*driver.capability)).image
    buffers = (*(BufferRef("input", i) for i in range(len(inputs))), BufferRef("output", 0))
    launch = Launch("k", image, (1, 1, 1), (threads, 1, 1), buffers, shared)
    specs = [TensorSpec(f"x{i}", array.shape, array.dtype) for i, array in enumerate(inputs)]
    with CudaProgram(driver, [launch], specs, [TensorSpec("y", output, F32)]) as program:
        return program.run(inputs)[0]


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
    body = "extern __shared__ float s[]; s[t + 16000] = x0[t]; treadle_barrier(); y[t] = s[16255 - t];"
    x = np.arange(SIZE, dtype=np.float32)
    np.testing.assert_array_equal(run(driver, body, [x], (SIZE,), shared=65024), x[::-1])


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("exp", np.exp),
        ("tanh", np.tanh),
        ("erf", np.vectorize(math.erf)),
        ("sin", np.sin),
        ("floor", np.floor),
        ("roundeven", np.rint),
    ],
)
def test_scalar_functions_are_accurate(
    driver: PycudaDriver, name: str, reference: Callable[[np.ndarray], np.ndarray]
) -> None:
    x = np.linspace(-8, 8, SIZE, dtype=np.float32)
    found = run(driver, f"y[t] = treadle_{name}(x0[t]);", [x], (SIZE,))
    np.testing.assert_allclose(found, reference(x.astype(np.float64)), rtol=5e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["max", "min"])
def test_maximum_and_minimum_propagate_nan(driver: PycudaDriver, name: str) -> None:
    x = np.array([1, np.nan, 3, -np.inf], np.float32)
    z = np.array([2, 1, np.nan, np.inf], np.float32)
    found = run(driver, f"y[t] = treadle_{name}(x0[t], x1[t]);", [x, z], (4,), threads=4)
    np.testing.assert_array_equal(found, np.maximum(x, z) if name == "max" else np.minimum(x, z))


@pytest.mark.parametrize(
    ("mode", "lanes"),
    [
        ("down", [lane + 3 if lane < 29 else lane for lane in range(32)]),
        ("up", [lane - 3 if lane >= 3 else lane for lane in range(32)]),
        ("xor", [lane ^ 3 for lane in range(32)]),
        ("idx", [3] * 32),
    ],
)
def test_shuffles_read_the_lane_that_the_dialect_says(driver: PycudaDriver, mode: str, lanes: list[int]) -> None:
    x = np.arange(32, dtype=np.float32)
    found = run(driver, f"y[t] = treadle_shuffle_{mode}(x0[t], 3);", [x], (32,), threads=32)
    np.testing.assert_array_equal(found, x[lanes])


def test_asynchronous_copies_fill_with_zeros_where_the_predicate_is_false(driver: PycudaDriver) -> None:
    body = (
        "alignas(16) __shared__ float s[128]; treadle_cp_async_16(s + 4 * t, x0 + 4 * t, t % 2 == 0);"
        " treadle_cp_async_commit(); treadle_cp_async_wait<0>(); treadle_barrier();"
        " for (int i = 0; i < 4; ++i) y[4 * t + i] = s[4 * t + i];"
    )
    x = np.arange(1, 129, dtype=np.float32)
    found = run(driver, body, [x], (128,), threads=32)
    np.testing.assert_array_equal(found, np.where(np.arange(128) // 4 % 2 == 0, x, 0))


def test_mma_f16_multiplies_what_ldmatrix_loads(driver: PycudaDriver) -> None:
    body = """
  alignas(16) __shared__ treadle_half a[16 * 24];
  alignas(16) __shared__ treadle_half b[16 * 24];
  for (int i = t; i < 256; i += 32) a[i / 16 * 24 + i % 16] = treadle_float_to_half(x0[i]);
  for (int i = t; i < 128; i += 32) b[i / 8 * 24 + i % 8] = treadle_float_to_half(x1[i]);
  treadle_barrier();
  treadle_vec<float, 4> c{};
  c = treadle_mma_m16n8k16_f16(treadle_ldmatrix_x4(a + t % 16 * 24 + t / 16 * 8),
                               treadle_ldmatrix_x2_trans(b + t % 16 * 24), c);
  for (int i = 0; i < 4; ++i) y[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = c.v[i];"""
    random = np.random.default_rng(0)
    a = random.integers(-8, 8, (16, 16)).astype(np.float32)
    b = random.integers(-8, 8, (16, 8)).astype(np.float32)
    np.testing.assert_array_equal(run(driver, body, [a, b], (16, 8), threads=32), a @ b)


def test_mma_tf32_multiplies(driver: PycudaDriver) -> None:
    body = """
  int g = t / 4, l = t % 4;
  treadle_vec<float, 4> a{{x0[g * 8 + l], x0[(g + 8) * 8 + l], x0[g * 8 + l + 4], x0[(g + 8) * 8 + l + 4]}};
  treadle_vec<float, 2> b{{x1[l * 8 + g], x1[(l + 4) * 8 + g]}};
  treadle_vec<float, 4> c{};
  c = treadle_mma_m16n8k8_tf32(a, b, c);
  for (int i = 0; i < 4; ++i) y[(g + i / 2 * 8) * 8 + l * 2 + i % 2] = c.v[i];"""
    random = np.random.default_rng(0)
    a = random.integers(-8, 8, (16, 8)).astype(np.float32)
    b = random.integers(-8, 8, (8, 8)).astype(np.float32)
    np.testing.assert_array_equal(run(driver, body, [a, b], (16, 8), threads=32), a @ b)
