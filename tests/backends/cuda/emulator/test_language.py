"""CUDA C++ on the emulator: each construct computes what the CUDA manuals say, with and without checks.

The functions of treadle_cuda.h have their own table, `tests/backends/cuda/conformance`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from treadle.backends.cuda.emulator import CHECKS, Emulator

Array = np.ndarray[Any, Any]
Run = Callable[..., None]
LANES = np.arange(32)


@pytest.fixture(params=[(), tuple(CHECKS)], ids=["fast", "checked"])
def run(request: pytest.FixtureRequest, emulate: Callable[..., Emulator]) -> Run:
    """Runs a body of kernel `k` with the given parameters; nothing may be found."""

    def launch(
        parameters: str,
        body: str,
        args: Sequence[object],
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (32, 1, 1),
        shared_bytes: int = 0,
    ) -> None:
        text = f'#include "treadle_cuda.h"\nextern "C" __global__ void k({parameters}) {{\n{body}\n}}\n'
        report = emulate(text, request.param).launch("k", grid, block, args, shared_bytes)
        assert not report.findings, str(report)

    return launch


def test_indices_in_three_dimensions(run: Run) -> None:
    out = np.zeros((2, 3, 4, 5, 2, 3, 7), np.int32)
    run(
        "int (*out)[7]",
        """  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  int *o = out[block * blockDim.x * blockDim.y * blockDim.z + t];
  o[0] = blockIdx.x; o[1] = blockIdx.y; o[2] = blockIdx.z;
  o[3] = threadIdx.x; o[4] = threadIdx.y; o[5] = threadIdx.z; o[6] = warpSize;""",
        [out],
        (4, 3, 2),
        (3, 2, 5),
    )
    index = np.indices(out.shape[:-1])
    for position, axis in enumerate((2, 1, 0, 5, 4, 3)):
        np.testing.assert_array_equal(out[..., position], index[axis])
    assert (out[..., 6] == 32).all()


def test_static_and_dynamic_shared_memory(run: Run) -> None:
    a, b = np.arange(96, dtype=np.float32), np.zeros(96, np.float32)
    body = """  __shared__ float fixed[2][16];
  extern __shared__ __align__(16) unsigned char raw[];
  float *moving = reinterpret_cast<float *>(raw);
  const int t = threadIdx.x, g = blockIdx.x * 32 + t;
  fixed[t / 16][t % 16] = a[g];
  moving[31 - t] = a[g] * 10;
  __syncthreads();
  b[g] = fixed[1 - t / 16][15 - t % 16] + moving[t];"""
    run("const float *__restrict__ a, float *__restrict__ b", body, [a, b], (3, 1, 1), shared_bytes=128)
    reversed_blocks = a.reshape(3, 32)[:, ::-1].ravel()
    np.testing.assert_array_equal(b, reversed_blocks * 11)


def test_a_static_array_and_a_dynamic_one_of_one_name(emulate: Callable[..., Emulator]) -> None:
    arrays = {"fixed": "__shared__ float s[32];", "moving": "extern __shared__ float s[];"}
    text = "".join(
        f'extern "C" __global__ void {name}(float *b) {{\n'
        f"  {array}\n  s[threadIdx.x] = 3;\n  b[threadIdx.x] = s[threadIdx.x];\n}}\n"
        for name, array in arrays.items()
    )
    for name, shared_bytes in (("fixed", 0), ("moving", 128)):
        b = np.zeros(32, np.float32)
        assert not emulate(text).launch(name, (1, 1, 1), (32, 1, 1), [b], shared_bytes).findings
        assert (b == 3).all()


def test_shuffles_and_votes(run: Run) -> None:
    out = np.zeros((9, 32), np.int32)
    body = """  const int t = threadIdx.x;
  const unsigned all = 0xffffffffu;
  out[0][t] = __shfl_sync(all, t * 3, 5);
  out[1][t] = __shfl_up_sync(all, t, 3);
  out[2][t] = __shfl_down_sync(all, t, 3, 8);
  out[3][t] = (int)__shfl_xor_sync(all, (double)t, 9);
  out[4][t] = (int)__ballot_sync(all, t % 3 == 0);
  out[5][t] = __any_sync(all, t == 40) * 2 + __all_sync(all, t < 40);
  out[6][t] = (int)__match_any_sync(all, t / 8);
  out[7][t] = __reduce_add_sync(all, t);
  if (t < 16) out[8][t] = __shfl_xor_sync(0x0000ffffu, t, 1); else out[8][t] = __shfl_sync(0xffff0000u, t, 17);"""
    run("int (*out)[32]", body, [out])
    t = LANES
    np.testing.assert_array_equal(out[0], 15)
    np.testing.assert_array_equal(out[1], np.where(t < 3, t, t - 3))
    np.testing.assert_array_equal(out[2], np.where(t % 8 < 5, t + 3, t))
    np.testing.assert_array_equal(out[3], t ^ 9)
    assert (out[4].view(np.uint32) == sum(1 << n for n in range(0, 32, 3))).all()
    np.testing.assert_array_equal(out[5], 1)
    assert (out[6].view(np.uint32) == [0xFF << (n // 8 * 8) for n in range(32)]).all()
    np.testing.assert_array_equal(out[7], t.sum())
    np.testing.assert_array_equal(out[8], np.where(t < 16, t ^ 1, 17))


def test_atomics_on_global_and_shared_memory(run: Run) -> None:
    counts, sums = np.zeros(10, np.int32), np.zeros(3, np.float32)
    extremes, doubles = np.array([50, 50], np.uint32), np.zeros(1, np.float64)
    body = """  __shared__ int total;
  const int t = threadIdx.x;
  if (t == 0) total = 0;
  __syncthreads();
  atomicAdd(&total, 1);
  atomicAdd(&counts[t % 10], 1);
  atomicAdd(sums, 0.5f);
  atomicMax(&extremes[0], (unsigned)t);
  atomicMin(&extremes[1], (unsigned)t + 3);
  atomicAdd(doubles, 1.0);
  __syncthreads();
  if (t == 0) atomicExch(&sums[1], (float)total);
  if (t < 2) atomicCAS((int *)&sums[2], 0, __float_as_int(7.0f));"""
    parameters = "int *counts, float *sums, unsigned *extremes, double *doubles"
    run(parameters, body, [counts, sums, extremes, doubles], (8, 1, 1), (100, 1, 1))
    np.testing.assert_array_equal(counts, 80)
    np.testing.assert_array_equal(sums, [400, 100, 7])
    np.testing.assert_array_equal(extremes, [99, 3])
    assert doubles[0] == 800


def test_vector_types_and_read_only_loads(run: Run) -> None:
    a, b, c = np.arange(128, dtype=np.float32), np.zeros(128, np.float32), np.zeros(64, np.int32)
    body = """  const int t = threadIdx.x;
  float4 v = __ldg((const float4 *)a + t);
  v = make_float4(v.w, v.z, v.y, v.x);
  reinterpret_cast<float4 *>(b)[t] = v;
  ((int2 *)c)[t] = make_int2(t, -t);"""
    run("const float *a, float *b, int *c", body, [a, b, c])
    np.testing.assert_array_equal(b.reshape(-1, 4), a.reshape(-1, 4)[:, ::-1])
    np.testing.assert_array_equal(c.reshape(-1, 2), np.stack([LANES, -LANES], 1))


def test_scalars_structures_and_device_functions(emulate: Callable[..., Emulator]) -> None:
    text = """
struct Affine { float scale; int shift; };
__constant__ float table[4] = {1, 2, 3, 4};
template <int N> __device__ __forceinline__ float twice(float x) { return x * N; }
static __device__ __noinline__ float apply(Affine f, float x) { return f.scale * x + f.shift; }
extern "C" {
__global__ void k(float *out, Affine f, bool on, double d, unsigned char byte, long long wide) {
  int t = threadIdx.x;
  #pragma unroll
  for (int i = 0; i < 4; ++i) out[t * 4 + i] = apply(f, twice<2>(table[i])) + (on ? d : 0) + byte + (float)wide;
}
}
"""
    out = np.zeros(8, np.float32)
    structure = np.array([(0.5, 3)], np.dtype([("scale", "f4"), ("shift", "i4")])).tobytes()
    emulate(text).launch("k", (1, 1, 1), (2, 1, 1), [out, structure, True, 0.25, np.uint8(10), -100])
    np.testing.assert_array_equal(out, [1 + 3 + 0.25 + 10 - 100 + n for n in (0, 1, 2, 3)] * 2)


def test_mathematics_against_numpy(run: Run) -> None:
    x = np.linspace(0.1, 3, 32, dtype=np.float32)
    names = ("expf", "logf", "sqrtf", "rsqrtf", "tanhf", "sinf", "cosf", "floorf", "fabsf", "__expf")
    out = np.zeros((len(names) + 3, 32), np.float32)
    lines = [f"out[{n}][t] = {name}(x[t]);" for n, name in enumerate(names)]
    count = len(names)
    lines += [
        f"out[{count}][t] = fmaxf(x[t], 1) + min(t, 3) + max(2.0f, x[t]);",
        f"out[{count + 1}][t] = fmaf(x[t], 2, 1) + exp(x[t]) + pow(x[t], 2.0f);",
        f"out[{count + 2}][t] = __int_as_float(__float_as_int(x[t])) + __popc(t) + __clz(t + 1);",
    ]
    run("const float *x, float (*out)[32]", "const int t = threadIdx.x;" + "\n".join(lines), [x, out])
    exp = np.exp(x)
    expected = (exp, np.log(x), np.sqrt(x), 1 / np.sqrt(x), np.tanh(x), np.sin(x), np.cos(x), np.floor(x), x, exp)
    for row, value in zip(out, expected, strict=False):
        np.testing.assert_allclose(row, value, rtol=1e-6)
    np.testing.assert_allclose(out[count], np.maximum(x, 1) + np.minimum(LANES, 3) + np.maximum(2, x), rtol=1e-6)
    np.testing.assert_allclose(out[count + 1], 2 * x + 1 + exp + x * x, rtol=1e-6)
    bits = np.array([n.bit_count() + 32 - (n + 1).bit_length() for n in range(32)])
    np.testing.assert_allclose(out[count + 2], x + bits, rtol=1e-6)


def test_arguments_may_share_memory(run: Run) -> None:
    memory = np.arange(64, dtype=np.float32)
    body = "const int t = threadIdx.x; b[t] = a[t] * 2; c[t] += 1;"
    run("const float *a, float *b, float *c", body, [memory[:32], memory[32:], memory[:32]])
    np.testing.assert_array_equal(memory, np.concatenate([LANES + 1, LANES * 2]))
