"""Every kind of finding on a hand-written kernel, and none on the correct kernel beside it.

In a faulty text the line that a finding must name ends with `// HERE`, the one it conflicts with in `// OTHER`;
a twin is the text with one edit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from treadle.backends.cuda.emulator import CHECKS, Emulator, Report


@dataclass(frozen=True)
class Case:
    kind: str
    says: str
    body: str
    edit: tuple[str, str]
    """What turns the faulty body into the correct one."""
    block: tuple[int, int, int] = (64, 1, 1)
    grid: tuple[int, int, int] = (2, 1, 1)
    shared_bytes: int = 0
    buffer: str | None = None


CASES = {
    "missing barrier": Case(
        "race",
        "a read and a write that no barrier orders",
        """__shared__ float s[64];
  s[t] = a[t]; // OTHER
  b[g] = s[63 - t]; // HERE""",
        ("// OTHER", "__syncthreads();"),
        buffer="s",
    ),
    "barrier too late": Case(
        "race",
        "a read and a write that no barrier orders",
        """__shared__ float s[64];
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    s[t] = a[t] + i; // OTHER
    __syncthreads();
    sum += s[63 - t]; // HERE
  }
  b[g] = sum;""",
        ("// HERE", "__syncthreads();"),
        buffer="s",
    ),
    "two writers": Case(
        "race",
        "two writes that no barrier orders",
        """__shared__ int n;
  n = t; // HERE
  __syncthreads();
  b[g] = n >= 0;""",
        ("n = t; // HERE", "if (t == 5) n = t;"),
        buffer="n",
    ),
    "halves of a word are no race, the same half is": Case(
        "race",
        "two writes that no barrier orders",
        """__shared__ unsigned short s[64];
  s[t / 2] = (unsigned short)t; // HERE
  __syncthreads();
  b[g] = s[t / 2];""",
        ("s[t / 2] = ", "s[t] = "),
        buffer="s",
    ),
    "warps need a warp barrier": Case(
        "race",
        "a read and a write that no barrier orders",
        """__shared__ float s[64];
  s[t] = a[t]; // OTHER
  b[g] = s[t ^ 1]; // HERE""",
        ("// OTHER", "__syncwarp();"),
        buffer="s",
    ),
    "a warp barrier does not order other warps": Case(
        "race",
        "a read and a write that no barrier orders",
        """__shared__ float s[64];
  s[t] = a[t]; // OTHER
  __syncwarp();
  b[g] = s[t ^ 32]; // HERE""",
        ("__syncwarp();", "__syncthreads();"),
        buffer="s",
    ),
    "blocks race on global memory": Case(
        "race",
        "two writes that no barrier orders",
        "b[t] = a[t]; // HERE",
        ("b[t]", "b[g]"),
        buffer="b",
    ),
    "sums between blocks need atomics": Case(
        "race",
        "that no barrier orders",
        "b[t] += a[t]; // HERE",
        ("b[t] += a[t]", "atomicAdd(&b[t], a[t])"),
        buffer="b",
    ),
    "asynchronous copy not waited for": Case(
        "race",
        "touched while an asynchronous copy to it is under way",
        """__shared__ alignas(16) float s[2][256];
  treadle_cp_async_16(&s[0][t * 4], &a[t * 4]); // OTHER
  treadle_cp_async_commit();
  treadle_cp_async_16(&s[1][t * 4], &a[t * 4]);
  treadle_cp_async_commit();
  treadle_cp_async_wait<2>();
  __syncthreads();
  b[g] = s[0][t]; // HERE""",
        ("wait<2>", "wait<1>"),
        buffer="s",
    ),
    "a barrier belongs between waiting and reading": Case(
        "race",
        "a read and a write that no barrier orders",
        """__shared__ alignas(16) float s[256];
  treadle_cp_async_16(&s[t * 4], &a[t * 4]); // OTHER
  treadle_cp_async_commit();
  treadle_cp_async_wait<0>();
  b[g] = s[t]; // HERE""",
        ("b[g] =", "__syncthreads(); b[g] ="),
        buffer="s",
    ),
    "behind a global buffer": Case(
        "bounds",
        "4 bytes outside of the buffer",
        "b[g + 1] = a[t]; // HERE",
        ("g + 1", "g"),
        buffer="b[128]",
    ),
    "before a global buffer": Case(
        "bounds",
        "4 bytes outside of the buffer",
        "b[g] = a[t - 3]; // HERE",
        ("t - 3", "t + 3"),
        buffer="a[-3]",
    ),
    "a load whose value not all threads use": Case(
        "bounds",
        "4 bytes outside of the buffer",
        """const float x = a[g * 9]; // HERE
  if (g < 5) b[g] = x;""",
        ("g * 9", "g"),
        buffer="a",
    ),
    "a vector load that is half outside": Case(
        "bounds",
        "bytes outside of the buffer",
        """const float4 v = *(const float4 *)&a[t * 8 + off]; // HERE
  b[g] = v.x + v.y + v.z + v.w;""",
        ("t * 8 + off", "t * 4"),
        buffer="a",
    ),
    "a vector at an address that is not aligned": Case(
        "bounds",
        "an address that is no multiple of 8",
        """*(float2 *)&b[g / 2 * 2 + 1 - t % 2] = make_float2(1, 2); // HERE""",
        ("*(float2 *)&b[g / 2 * 2 + 1 - t % 2] = make_float2(1, 2)", "b[g] = 1"),
    ),
    "static shared memory": Case(
        "bounds",
        "is outside of 'float[64]'",
        """__shared__ float s[64];
  s[t] = a[t];
  __syncthreads();
  b[g] = s[t + off]; // HERE""",
        ("t + off", "t + off - 1"),
    ),
    "static shared memory through a pointer": Case(
        "bounds",
        "4 bytes outside of the buffer",
        """__shared__ float s[64];
  float *p = s + off;
  p[t - 1] = a[t];
  __syncthreads();
  b[g] = p[t]; // HERE""",
        ("p[t]; // HERE", "p[t - 1];"),
        buffer="s[64]",
    ),
    "from one static array into the next": Case(
        "bounds",
        "4 bytes outside of the buffer",
        """__shared__ float s[64], r[64], q[64];
  s[t] = r[t] = q[t] = a[t];
  __syncthreads();
  float *p = r + off - 1;
  p[t + 1] += 1; // HERE
  b[g] = s[t] + q[t];""",
        ("p[t + 1] +=", "p[t] +="),
        buffer="r[64]",
    ),
    "dynamic shared memory": Case(
        "bounds",
        "4 bytes outside of the buffer",
        """extern __shared__ float s[];
  s[t] = a[t]; // HERE
  __syncthreads();
  b[g] = s[t / 2];""",
        ("s[t] =", "if (t < 32) s[t] ="),
        shared_bytes=128,
        buffer="s[32]",
    ),
    "a row of a matrix": Case(
        "bounds",
        "is outside of 'float[8]'",
        """__shared__ float s[8][8];
  s[t / 8][t % 8] = a[t];
  __syncthreads();
  b[g] = s[t / 16][t % 8 + off]; // HERE""",
        ("t % 8 + off", "t % 8"),
    ),
    "a register array": Case(
        "bounds",
        "is outside of 'float[4]'",
        """float r[4] = {1, 2, 3, 4};
  for (int i = 0; i < 3 + off * 2; ++i) r[i & 7] += a[t]; // HERE
  b[g] = r[t % 4];""",
        ("3 + off * 2", "3 + off"),
    ),
    "shared memory never written": Case(
        "init",
        "read before anything was written to it",
        """__shared__ float s[64];
  if (t < 63) s[t] = a[t];
  __syncthreads();
  b[g] = s[t]; // HERE""",
        ("t < 63", "t < 64"),
        buffer="s[63]",
    ),
    "registers never written": Case(
        "init",
        "a value made of registers that were never written",
        """float sum[4];
  for (int i = off; i < 4; ++i) sum[i] = 0;
  for (int n = 0; n < 5; ++n) {
    for (int i = 0; i < 4; ++i) sum[i] += a[t + n] * i;
  }
  b[g] = sum[t % 4]; // HERE""",
        ("i = off", "i = off - 1"),
        buffer="b[0]",
    ),
    "a barrier that some threads do not reach": Case(
        "divergence",
        "a barrier that some threads left the kernel without reaching",
        """__shared__ float s[64];
  s[t] = a[t];
  if (t >= 40) return;
  __syncthreads(); // HERE
  b[g] = s[t / 2];""",
        ("if (t >= 40) return;", ""),
    ),
    "threads at two barriers": Case(
        "divergence",
        "threads of one block wait at two different barriers",
        """__shared__ float s[64];
  s[t] = a[t];
  if (t < 32) {
    __syncthreads(); // HERE
  } else {
    __syncthreads(); // OTHER
  }
  b[g] = s[t];""",
        ("t < 32", "off == 1"),
    ),
    "a shuffle with lanes that are elsewhere": Case(
        "divergence",
        "a warp operation that lanes of its mask take no part in",
        """float x = a[t];
  if (t % 32 < 16) x += __shfl_down_sync(0xffffffffu, x, 8); // HERE
  if (t % 16 < 8) b[g] = x;""",
        ("0xffffffffu", "0x0000ffffu"),
    ),
    "a shuffle from a lane that is not there": Case(
        "divergence",
        "a shuffle from lanes that take no part in it",
        """float x = a[t];
  x = __shfl_sync(0xffffffffu, x, 20); // HERE
  b[g] = x;""",
        ("x, 20)", "x, 10)"),
        block=(16, 1, 1),
    ),
    "mma with inactive lanes": Case(
        "divergence",
        "a warp operation that lanes of its mask take no part in",
        """treadle_vec<float, 4> c{}, x{{1, 1, 1, 1}};
  treadle_vec<float, 2> y{{1, 1}};
  if (t != 7) c = treadle_mma_m16n8k8_tf32(x, y, c); // HERE
  b[g] = c.v[0];""",
        ("if (t != 7) ", ""),
    ),
}


def source(body: str, name: str = "k") -> str:
    return (
        '#include "treadle_cuda.h"\n'
        f'extern "C" __global__ void {name}(const float *a, float *b, int off) {{\n'
        "  const int t = threadIdx.x, g = blockIdx.x * blockDim.x + t;\n"
        f"  {body}\n}}\n"
    )


def twin(case: Case) -> str:
    assert case.edit[0] in case.body
    return case.body.replace(*case.edit)


KERNELS = {name: f"faulty_{number}" for number, name in enumerate(CASES)}
TWINS = {name: f"twin_{number}" for number, name in enumerate(CASES)}
TEXT = "".join(source(case.body, KERNELS[name]) + source(twin(case), TWINS[name]) for name, case in CASES.items())
"""All kernels: compiling each by itself would take most of the tests' time."""


def line_of(kernel: str, mark: str) -> int | None:
    before, _, text = TEXT.partition(f" {kernel}(")
    first = before.count("\n") + 1
    own = text.split("\n}\n", 1)[0].splitlines()
    return next((number for number, line in enumerate(own, first) if line.endswith(f"// {mark}")), None)


def launch(
    emulate: Callable[..., Emulator], case: Case, text: str, kernel: str = "k", checks: tuple[str, ...] = tuple(CHECKS)
) -> Report:
    a = np.arange(256, dtype=np.float32)
    b = np.zeros(128, np.float32)
    return emulate(text, checks).launch(kernel, case.grid, case.block, [a, b, 1], case.shared_bytes)


@pytest.mark.parametrize("name", list(CASES))
def test_a_faulty_kernel_is_found(name: str, emulate: Callable[..., Emulator]) -> None:
    case, kernel = CASES[name], KERNELS[name]
    report = launch(emulate, case, TEXT, kernel)
    found = [each for each in report.findings if each.kind == case.kind and case.says in each.message]
    assert found, str(report)
    first = found[0]
    assert first.kernel == kernel and first.blocks and "\n" not in str(first)
    assert first.line == line_of(kernel, "HERE"), str(report)
    if (other := line_of(kernel, "OTHER")) is not None:
        assert first.other_line == other, str(report)
    if case.buffer is not None:
        assert case.buffer in (first.buffer, f"{first.buffer}[{first.element}]")


@pytest.mark.parametrize("name", list(CASES))
def test_the_correct_twin_stays_silent(name: str, emulate: Callable[..., Emulator]) -> None:
    report = launch(emulate, CASES[name], TEXT, TWINS[name])
    assert not report.findings, str(report)


def test_only_the_checks_that_were_asked_for(emulate: Callable[..., Emulator]) -> None:
    case = CASES["missing barrier"]
    text = source(case.body)
    assert {each.kind for each in launch(emulate, case, text).findings} == {"race", "init"}
    assert {each.kind for each in launch(emulate, case, text, checks=("init",)).findings} == {"init"}
    assert not launch(emulate, case, text, checks=()).findings


def test_reports_are_the_same_every_time(emulate: Callable[..., Emulator]) -> None:
    case = CASES["sums between blocks need atomics"]
    text = source(case.body)
    assert len({str(launch(emulate, case, text).findings[0].line) for _ in range(5)}) == 1


def test_a_finding_is_one_readable_line(emulate: Callable[..., Emulator]) -> None:
    case = CASES["behind a global buffer"]
    (finding,) = launch(emulate, case, source(case.body)).findings
    assert str(finding) == "bounds k:4: b[128]: 4 bytes outside of the buffer: threads 63 of block 1"
