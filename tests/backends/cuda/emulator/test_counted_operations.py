"""Floating-point operations, special functions and tensor core products: as many as the text says, thread by thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.helpers.graphs import Graph, random
from treadle.backends.cuda.emulator import Counters, Emulator
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.emulator.instrument import counts_operations
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import MatmulOp, SoftmaxOp
from treadle.dialects.registry import treadle_context
from treadle.environment import Environment
from treadle.target import Target

pytestmark = pytest.mark.skipif(not counts_operations(), reason="operations are counted on x86-64 only")

Launch = Callable[..., Counters]


@pytest.fixture
def launch(emulator_environment: Environment) -> Launch:
    def run(text: str, grid: int, block: int, args: Sequence[object]) -> Counters:
        emulator = Emulator(text, (), counters=True, environment=emulator_environment)
        counters = emulator.launch("k", (grid, 1, 1), (block, 1, 1), args).counters
        assert counters is not None
        return counters

    return run


EXPRESSIONS = {
    "x + y": (1, 0),
    "x * y - z / x": (3, 0),
    "x * y + z": (2, 0),
    "fmaf(x, y, z)": (2, 0),
    "treadle_fma(x, y, z)": (2, 0),
    "fma(d, d, d)": (2, 0),
    "d * d + d": (2, 0),
    "sqrtf(x)": (1, 0),
    "sqrt(d)": (1, 0),
    "rsqrtf(x)": (2, 0),
    "expf(x)": (0, 1),
    "__expf(x) + tanhf(y)": (1, 2),
    "treadle_exp(x) * treadle_erf(y)": (1, 2),
    "powf(x, y) + exp(d)": (1, 2),
    "-x": (0, 0),
    "fabsf(x)": (0, 0),
    "x < y ? x : z": (0, 0),
    "fmaxf(x, fminf(y, z))": (0, 0),
    "treadle_max(x, y)": (0, 0),
    "floorf(x) + ceilf(y)": (1, 0),
    "rintf(x) + truncf(y)": (1, 0),
    "roundf(x) + nearbyint(d)": (1, 0),
    "(float)n": (0, 0),
    "(float)(unsigned)n + (double)(long)n": (1, 0),
    "(int)z": (0, 0),
    "treadle_half_to_float(treadle_float_to_half(x))": (0, 0),
    "treadle_half_to_float({(unsigned short)n})": (0, 0),
    "treadle_half_to_float(treadle_float_to_half(x * 1e-6f))": (1, 0),
    "treadle_bfloat16_to_float(treadle_float_to_bfloat16(x))": (0, 0),
    "n ? x + y : x * y * z": (1, 0),
    "(treadle_vec<float, 4>{x, y, z, x} * treadle_vec<float, 4>{x, y, z, y}).v[2]": (4, 0),
}
"""Operations and special functions of one thread."""


def test_operations_of_expressions(launch: Launch) -> None:
    lines = [f"  b[threadIdx.x] = {expression};" for expression in EXPRESSIONS]
    text = """extern "C" __global__ void k(const float *a, double *b, int n) {
  float x = a[0], y = a[1], z = a[2];
  double d = b[0];
"""
    arrays = [np.array([0.25, 0.5, 2.0], np.float32), np.ones(32)]
    counters = launch("\n".join([text, *lines, "}", ""]), 1, 1, [*arrays, 3])
    counted = (counters.line(5 + number) for number in range(len(EXPRESSIONS)))
    found = [(each.operations, each.special) for each in counted]
    assert dict(zip(EXPRESSIONS, found, strict=True)) == EXPRESSIONS


def test_axpy_counts_two_for_each_element(launch: Launch) -> None:
    text = """extern "C" __global__ void k(const float *x, float *y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""
    n = 1000
    counters = launch(text, 8, 128, [np.ones(n, np.float32), np.ones(n, np.float32), 2.0, n])
    assert counters.total.operations == 2 * n and [each.line for each in counters.lines] == [3]
    assert (counters.total.global_read, counters.total.global_written) == (8 * n, 4 * n)
    assert counters.total.global_sectors == counters.total.global_ideal == 3 * n // 8


TILED = """extern "C" __global__ void k(const float *a, const float *b, float *c, int n) {
  __shared__ float s[16][16], t[16][17];
  int x = threadIdx.x % 16, y = threadIdx.x / 16;
  int row = blockIdx.x / (n / 16) * 16 + y, column = blockIdx.x % (n / 16) * 16 + x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    s[y][x] = a[row * n + k + x];
    t[y][x] = b[(k + y) * n + column];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; ++i) sum += s[y][i] * t[i][x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
"""


def test_a_tiled_matrix_product(launch: Launch) -> None:
    n = 64
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    c = np.zeros((n, n), np.float32)
    counters = launch(TILED, 16, 256, [a, b, c, n])
    np.testing.assert_allclose(c, a @ b, rtol=0, atol=1e-4)
    product, total = counters.line(11), counters.total
    assert total.operations == product.operations == 2 * n**3
    # A warp reads two rows of s, the same word for 16 lanes each, and a whole row of t twice.
    assert product.shared_requests == 2 * n**3 // 32 and product.bank_conflicts == 0
    assert total.barriers == 16 * 4 * 2
    assert total.global_read == 2 * (n // 16) * n * n * 4 and total.global_written == n * n * 4
    assert total.global_sectors == total.global_ideal
    # Rows of t are 17 words apart: the last word of one row and the first of the next may share a bank.
    assert (counters.line(7).bank_conflicts, counters.line(8).bank_conflicts) == (0, 16 * 4 * 8)


@pytest.mark.parametrize("branch", ["if (i % 3 == t % 3) x += a[i] * 2;", "x = i % 3 == t % 3 ? x + a[i] * 2 : x;"])
def test_lanes_that_sit_out_count_nothing(branch: str, launch: Launch) -> None:
    text = f"""extern "C" __global__ void k(const float *a, float *b) {{
  int t = threadIdx.x;
  float x = 0;
  for (int i = 0; i < 30; ++i) {{
    {branch}
  }}
  b[t] = x;
}}
"""
    counters = launch(text, 1, 32, [np.ones(30, np.float32), np.zeros(32, np.float32)])
    assert counters.line(5).operations == 32 * 10 * 2
    assert counters.line(5).global_requests == 30


@pytest.mark.parametrize(
    ("product", "operations"),
    [
        ("treadle_mma_m16n8k16_f16(a, b, c)", 2 * 16 * 8 * 16),
        ("treadle_mma_m16n8k16_bf16(a, b, c)", 2 * 16 * 8 * 16),
        ("treadle_mma_m16n8k8_tf32({}, {}, c)", 2 * 16 * 8 * 8),
        ("treadle_mma_m16n8k32_s8_u8(a, b, c)", 2 * 16 * 8 * 32),
    ],
)
def test_tensor_core_products(product: str, operations: int, launch: Launch) -> None:
    text = f"""extern "C" __global__ void k(float *o) {{
  treadle_vec<unsigned, 4> a = {{}};
  treadle_vec<unsigned, 2> b = {{}};
  treadle_vec<{"int" if "m16n8k32" in product else "float"}, 4> c = {{}};
  for (int i = 0; i < 3; ++i) {{
    c = {product};
  }}
  o[threadIdx.x] = c.v[0];
}}
"""
    counters = launch(text, 2, 128, [np.zeros(128, np.float32)])
    assert counters.line(6).operations == counters.total.operations == 2 * 4 * 3 * operations


def _pipeline(graph: Graph, result: object, environment: Environment) -> list[Counters]:
    module = graph.module(result)  # pyright: ignore[reportArgumentType]
    lower(treadle_context(), module, Target.parse("sm_80"))
    _, reports = EmulatedProgram(module, (), counters=True, environment=environment).run(graph.inputs)
    found = [report.counters for report in reports]
    return [counters for counters in found if counters is not None]


@pytest.mark.parametrize("n", [128, 192])
def test_the_pipelines_matrix_product(n: int, emulator_environment: Environment) -> None:
    graph = Graph(random(n, n, seed=1), random(n, n, seed=2))
    counters = _pipeline(graph, graph.add(MatmulOp(graph[0], graph[1])), emulator_environment)
    assert all(each.line for kernel in counters for each in kernel.lines)
    operations = sum(kernel.total.operations or 0 for kernel in counters)
    # A reduction that is split in parts adds these up as well: fewer than 32 of each element.
    assert 0 <= operations - 2 * n**3 < 32 * n * n
    assert counters[-1].total.global_written >= 4 * n * n


def test_the_pipelines_softmax(emulator_environment: Environment) -> None:
    rows, columns = 16, 128
    graph = Graph(random(rows, columns))
    counters = _pipeline(graph, graph.add(SoftmaxOp(graph[0], 1)), emulator_environment)
    assert all(each.line for kernel in counters for each in kernel.lines)
    assert sum(kernel.total.special or 0 for kernel in counters) == rows * columns
    operations = sum(kernel.total.operations or 0 for kernel in counters)
    # Subtracting the maximum, adding up, scaling. Sums begin with zero, and all lanes of a warp add up its five rounds.
    assert 3 * rows * columns - rows <= operations <= 3 * rows * columns + 32 * 6 * rows
    # One kernel, which holds its row: every element is read once.
    assert [kernel.total.global_read for kernel in counters] == [4 * rows * columns]
