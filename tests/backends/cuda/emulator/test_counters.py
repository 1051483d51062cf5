"""What requests of warps cost, on hand-written kernels whose counts follow from the CUDA manual's rules.

Each line that a test asks about ends with a comment of one word, by which the test names it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.backends.c.toolchains import COMMANDS
from treadle.backends.cuda.emulator import CHECKS, Counters, Emulator, LineCounters
from treadle.environment import Environment

Count = Callable[..., dict[str, LineCounters]]

_HEAD = """struct alignas(16) Quad { float v[4]; };
struct Triple { float x, y, z; };
__device__ Quad doubled(Quad q) { for (float &x : q.v) x += x; return q; }
inline float sum(Triple t) { return t.x + t.y + t.z; }
extern "C" __global__ void k(float *a, float *b) {
  const int t = threadIdx.x, lane = t % 32;
"""
_A = 1 << 16


def _launch(emulator: Emulator, grid: int = 1, block: int = 32, shared_bytes: int = 0) -> Counters:
    arrays = [np.zeros(_A, np.float32), np.zeros(_A, np.float32)]
    counters = emulator.launch("k", (grid, 1, 1), (block, 1, 1), arrays, shared_bytes).counters
    assert counters is not None
    return counters


def _marked(counters: Counters) -> dict[str, LineCounters]:
    """The counters of each marked line; every other line must have counted nothing at all in memory."""
    marks = {number: match[1] for number, line in enumerate(counters.source.splitlines(), 1)
             if (match := re.search(r"// (\w+)$", line))}  # fmt: skip
    others = [each.line for each in counters.lines if each.line not in marks and _moved(each)]
    assert not others, [counters.text(number) for number in others]
    return {mark: counters.line(number) for number, mark in marks.items()}


def _moved(counters: LineCounters) -> int:
    return counters.global_requests + counters.shared_requests


@pytest.fixture(scope="session")
def count(emulator_environment: Environment) -> Count:
    """Counts a kernel of the given body."""

    def run(
        body: str,
        *,
        checks: Sequence[str] = (),
        workers: int = 2,
        environment: Environment = emulator_environment,
        **shape: int,
    ) -> dict[str, LineCounters]:
        emulator = Emulator(f"{_HEAD}{body}\n}}\n", checks, counters=True, workers=workers, environment=environment)
        return _marked(_launch(emulator, **shape))

    return run


SECTORS = {
    "lane": (4, 4),
    "31 - lane": (4, 4),
    "(lane * 5) % 32": (4, 4),
    "lane + 1": (5, 4),
    "lane + 8": (4, 4),
    "lane * 2": (8, 4),
    "lane * 8": (32, 4),
    "lane * 1024": (32, 4),
    "7": (1, 1),
    "lane / 16": (1, 1),
    "lane / 2 * 8": (16, 2),
    "lane % 4 * 9": (4, 1),
}
"""Sectors of 32 lanes that touch these elements of 4 bytes, and the fewest for as many bytes."""


def test_sectors_of_reads_and_writes(count: Count) -> None:
    reads = [f"x += a[{index}]; // read{number}" for number, index in enumerate(SECTORS)]
    writes = [f"b[{index}] = x; // write{number}" for number, index in enumerate(SECTORS)]
    found = count("\n".join(["float x = 0;", *reads, *writes]))
    for number, (index, costs) in enumerate(SECTORS.items()):
        read, write = found[f"read{number}"], found[f"write{number}"]
        for each in (read, write):
            assert (each.global_requests, each.global_sectors, each.global_ideal) == (1, *costs), index
            assert (each.shared_requests, each.bank_conflicts) == (0, 0)
        assert (read.global_read, read.global_written) == (128, 0)
        assert (write.global_read, write.global_written) == (0, 128)


VECTORS = {
    "char": ("((signed char *)b)[t] = ((signed char *)a)[t + 32];", 1, 1),
    "short": ("((short *)b)[t] = ((short *)a)[t];", 1, 2),
    "half": ("((treadle_half *)b)[t] = ((treadle_half *)a)[t];", 1, 2),
    "float": ("b[t] = a[t];", 1, 4),
    "double": ("((double *)b)[t] = ((double *)a)[t];", 1, 8),
    "float2": ("((float2 *)b)[t] = ((float2 *)a)[t];", 1, 8),
    "float4": ("((float4 *)b)[t] = ((float4 *)a)[t];", 1, 16),
    "int4 through a variable": ("int4 v = __ldg((int4 *)a + t); ((int4 *)b)[t] = v;", 1, 16),
    "a structure of one's own": ("((Quad *)b)[t] = ((Quad *)a)[t];", 1, 16),
    "a structure to and from a function": ("((Quad *)b)[t] = doubled(((Quad *)a)[t]);", 1, 16),
    "treadle_vec": (
        "treadle_store(b + t * 4, treadle_load<treadle_vec<float, 4>>(a + t * 4));", 1, 16,
    ),
    "eight bytes at once": (
        "treadle_store(b + t * 2, treadle_load<treadle_vec<float, 2>>(a + t * 2));", 1, 8,
    ),
    "double4 is two accesses": ("((double4 *)b)[t] = ((double4 *)a)[t];", 2, 16),
    "three floats are three accesses": ("((Triple *)b)[t] = ((Triple *)a)[t];", 3, 4),
    "what is built is written at once": (
        "float4 v = ((float4 *)a)[t]; ((float4 *)b)[t] = make_float4(v.w, 1, 2, 3);", 1, 16,
    ),
    "so is a list": ("float4 v = ((float4 *)a)[t]; ((float4 *)b)[t] = {v.w, 1, 2, 3};", 1, 16),
}  # fmt: skip


@pytest.mark.parametrize("compiler", list(COMMANDS))
def test_an_access_of_the_text_is_one_access(compiler: str, count: Count, emulator_environment: Environment) -> None:
    chosen = dataclasses.replace(emulator_environment, c_compiler=COMMANDS[compiler])
    lines = [f"{{ {statements} }} // here{number}" for number, (statements, *_) in enumerate(VECTORS.values())]
    found = count("\n".join(lines), environment=chosen)
    for number, (case, (_, requests, size)) in enumerate(VECTORS.items()):
        here = found[f"here{number}"]
        assert here.global_requests == 2 * requests, case
        assert here.global_read == here.global_written == 32 * requests * size, case


@pytest.mark.parametrize("compiler", list(COMMANDS))
def test_reading_what_is_written_right_afterwards(
    compiler: str, count: Count, emulator_environment: Environment
) -> None:
    chosen = dataclasses.replace(emulator_environment, c_compiler=COMMANDS[compiler])
    here = count("b[t] += 1.0f; // here", environment=chosen)["here"]
    assert (here.global_requests, here.global_read, here.global_written, here.operations) == (2, 128, 128, 32)


def test_an_argument_read_from_memory_is_read(count: Count) -> None:
    found = count("b[t] = sum(((Triple *)a)[t]); // here")["here"]
    assert (found.global_requests, found.global_read, found.global_written) == (4, 32 * 12, 128)


CONFLICTS = {
    "lane": 0,
    "31 - lane": 0,
    "0": 0,
    "lane / 4": 0,
    "lane * 2": 1,
    "lane * 4": 3,
    "lane * 32": 31,
    "lane * 33": 0,
    "lane * 3": 0,
    "lane / 8 * 32 + lane % 8": 3,
    "lane / 8 * 32 + (lane % 8 ^ lane / 8 * 8)": 0,
}
"""Bank conflicts of 32 lanes that touch these words."""


def test_bank_conflicts(count: Count) -> None:
    writes = [f"s[{index}] = 1; // write{number}" for number, index in enumerate(CONFLICTS)]
    reads = [f"x += s[{index}]; // read{number}" for number, index in enumerate(CONFLICTS)]
    found = count("\n".join(["__shared__ float s[33 * 32]; float x = 0;", *writes, *reads]))
    for number, (index, conflicts) in enumerate(CONFLICTS.items()):
        read, write = found[f"read{number}"], found[f"write{number}"]
        for each in (read, write):
            assert (each.shared_requests, each.shared_phases, each.bank_conflicts) == (1, 1, conflicts), index
            assert each.shared_wavefronts == 1 + conflicts and each.global_requests == 0
        assert (write.shared_read, write.shared_written) == (0, 128)
        assert (read.shared_read, read.shared_written) == (128, 0)


PHASES = [
    ("short", "lane", 1, 1),
    ("short", "lane * 2", 1, 1),
    ("short", "lane * 64", 1, 32),
    ("float2", "lane", 2, 2),
    ("float2", "lane * 2", 2, 4),
    ("float2", "lane * 16", 2, 32),
    ("float4", "lane", 4, 4),
    ("float4", "lane * 8", 4, 32),
    ("float4", "lane * 9", 4, 4),
    ("float4", "lane / 8 * 8 + (lane % 8 ^ lane / 8)", 4, 4),
    ("float4", "0", 4, 4),
]
"""Type and element, phases and wavefronts."""


def test_wide_accesses_come_in_phases(count: Count) -> None:
    reads = [f"{{ {type} x = (({type} *)s)[{index}]; }}" for type, index, *_ in PHASES]
    marked = (f"{read} // read{number}" for number, read in enumerate(reads))
    found = count("\n".join(["__shared__ alignas(16) float s[8192];", *marked]))
    for number, (type, index, *costs) in enumerate(PHASES):
        each = found[f"read{number}"]
        assert [each.shared_requests, each.shared_phases, each.shared_wavefronts] == [1, *costs], (type, index)


@pytest.mark.parametrize(("row", "wavefronts"), [(8, 4), (16, 8), (64, 32), (72, 4), (40, 4)])
@pytest.mark.parametrize("suffix", ["", "_trans"])
def test_ldmatrix_reads_eight_rows_at_a_time(row: int, wavefronts: int, suffix: str, count: Count) -> None:
    body = f"""__shared__ unsigned short s[32 * {row}];
    treadle_vec<unsigned, 4> m = treadle_ldmatrix_x4{suffix}(s + lane * {row}); // here"""
    here = count(body)["here"]
    assert (here.shared_requests, here.shared_phases, here.shared_wavefronts) == (1, 4, wavefronts)
    assert here.shared_read == 512


def test_ldmatrix_of_fewer_matrices(count: Count) -> None:
    body = """__shared__ unsigned short s[32 * 8];
    treadle_vec<unsigned, 2> m = treadle_ldmatrix_x2(s + lane * 8); // two
    treadle_vec<unsigned, 1> n = treadle_ldmatrix_x1(s + lane * 8); // one"""
    found = count(body)
    assert [(each.shared_phases, each.shared_read) for each in found.values()] == [(2, 256), (1, 128)]


def test_asynchronous_copies_read_there_and_write_here(count: Count) -> None:
    body = """__shared__ alignas(16) float s[4 * 32];
    treadle_cp_async_16(s + lane * 4, a + lane * 8, lane < 16); // copy
    treadle_cp_async_commit();
    treadle_cp_async_wait<0>(); // wait"""
    found = count(body)
    copy = found["copy"]
    assert (copy.global_requests, copy.global_sectors, copy.global_ideal, copy.global_read) == (1, 16, 8, 256)
    assert (copy.shared_requests, copy.shared_phases, copy.bank_conflicts, copy.shared_written) == (1, 4, 0, 512)
    assert (copy.global_written, copy.shared_read, found["wait"].waits) == (0, 0, 1)


def test_atomics(count: Count) -> None:
    body = """__shared__ int s[1024];
    atomicAdd(&a[0], 1.0f); // one
    atomicAdd(&a[lane * 8], 1.0f); // spread
    atomicMax(&s[lane * 2], 1); // shared
    atomicCAS((int *)b + lane, 0, 1); // exchange"""
    found = count(body)
    one, spread, shared, exchange = (found[mark] for mark in ("one", "spread", "shared", "exchange"))
    assert (one.global_requests, one.global_sectors, one.global_ideal) == (1, 1, 1)
    assert (one.global_read, one.global_written) == (128, 128)
    assert (spread.global_requests, spread.global_sectors, spread.global_ideal) == (1, 32, 4)
    assert (shared.shared_requests, shared.bank_conflicts) == (1, 1)
    assert (shared.shared_read, shared.shared_written) == (128, 128)
    assert (exchange.global_requests, exchange.global_sectors) == (1, 4)


def test_lanes_that_part_ways_make_requests_of_their_own(count: Count) -> None:
    body = """if (lane < 8) {
      b[lane] = 1; // few
    } else {
      b[lane] = 2; // others
    }
    b[lane + 64] = 3; // together"""
    found = count(body)
    sectors = {mark: (each.global_requests, each.global_sectors) for mark, each in found.items()}
    assert sectors == {"few": (1, 1), "others": (1, 3), "together": (1, 4)}


def test_passes_of_a_loop_are_kept_apart(count: Count) -> None:
    body = """float x = 0;
    for (int i = 0; i < 3; ++i) {
      if (i == lane % 3) {
        x += a[lane]; // rare
      }
    }
    for (int i = 0; i < lane; ++i) {
      x += a[i]; // triangle
    }
    int n = 0;
    while (n < 5) {
      if (++n % 2 != lane % 2) continue;
      x += a[n]; // odd
    }
    b[lane] = x; // end"""
    found = count(body)
    requests = {mark: each.global_requests for mark, each in found.items()}
    assert requests == {"rare": 3, "triangle": 31, "odd": 5, "end": 1}
    assert found["triangle"].global_read == 4 * 31 * 32 // 2
    assert found["triangle"].global_sectors == 31


def test_a_function_that_calls_itself(emulator_environment: Environment) -> None:
    text = """__device__ float tree(const float *a, int n) {
  return n ? a[n] + tree(a, n - 1) : 0; // here
}
extern "C" __global__ void k(float *a, float *b) { b[threadIdx.x] = tree(a, 3); }
"""
    counters = _launch(Emulator(text, (), counters=True, environment=emulator_environment))
    here = counters.line(2)
    assert (here.global_requests, here.global_sectors, here.operations) == (3, 3, 3 * 32)


def test_a_loop_that_is_longer_than_the_log(count: Count) -> None:
    body = """float x = 0;
    for (int i = 0; i < 1000 + lane; ++i) {
      x += a[i * 32 + lane]; // read
    }
    b[t] = x; // write"""
    found = count(body, block=64)
    assert (found["read"].global_requests, found["write"].global_requests) == (2 * 1031, 2)
    assert found["read"].global_read == 2 * 4 * (32 * 1000 + 31 * 32 // 2)
    assert found["read"].operations == found["read"].global_read // 4


def test_one_lane_with_a_long_way_to_go(count: Count) -> None:
    body = """if (lane == 5) {
      for (int i = 0; i < 1000; ++i) {
        b[i] = i; // long
      }
    }
    b[1024 + t] = 1; // together"""
    found = count(body)
    assert (found["long"].global_requests, found["together"].global_requests) == (1000, 1)


@pytest.mark.parametrize("checks", [(), tuple(CHECKS)], ids=["alone", "checked"])
def test_barriers_count_once_a_block(checks: tuple[str, ...], count: Count) -> None:
    body = """__shared__ float s[64];
    for (int i = 0; i < 3; ++i) {
      s[t] = i; // write
      __syncthreads(); // first
      if (i == 2) b[blockIdx.x * 64 + t] = s[63 - t]; // read
      __syncthreads(); // second
    }"""
    found = count(body, checks=checks, grid=5, block=64)
    assert (found["first"].barriers, found["second"].barriers) == (15, 15)
    assert (found["write"].shared_requests, found["read"].shared_requests) == (30, 10)
    assert (found["read"].global_sectors, found["read"].bank_conflicts) == (40, 0)


def test_warps_wait_for_their_copies(count: Count) -> None:
    body = """__shared__ alignas(16) float s[128];
    for (int i = 0; i < 4; ++i) {
      treadle_cp_async_4(s + t, a + i * 128 + t); // copy
      treadle_cp_async_commit();
    }
    treadle_cp_async_wait<1>(); // one
    treadle_cp_async_wait<0>(); // all"""
    found = count(body, block=128)
    assert (found["copy"].global_requests, found["one"].waits, found["all"].waits) == (16, 4, 4)


def test_dynamic_shared_memory(count: Count) -> None:
    here = count("extern __shared__ float s[];\n s[t * 2] = 1; // here", shared_bytes=256)["here"]
    assert (here.shared_requests, here.bank_conflicts, here.shared_written) == (1, 1, 128)


def test_a_block_that_ends_in_the_middle_of_a_warp(count: Count) -> None:
    found = count("b[t] = a[t]; // here", block=40)["here"]
    assert (found.global_requests, found.global_sectors, found.global_read) == (4, 10, 160)


MIXED = """__shared__ float s[128];
  float x = a[blockIdx.x * 128 + t]; // load
  for (int i = 0; i < 2; ++i) {
    s[t * 2 % 128] = x * 2; // store
    __syncthreads(); // barrier
    x += __shfl_xor_sync(~0u, s[t], 1); // exchange
    __syncthreads(); // other
  }
  if (lane % 2) b[blockIdx.x * 128 + t] = x; // end"""


def test_counts_do_not_depend_on_workers_or_checks(count: Count) -> None:
    kernels = [count(MIXED, workers=workers, checks=checks, grid=37, block=128)
               for workers in (1, 2, 3) for checks in ((), ("races", "bounds"))]  # fmt: skip
    assert all(kernel == kernels[0] for kernel in kernels)
    assert kernels[0]["load"].global_requests == 37 * 4
    assert kernels[0]["barrier"].barriers == 37 * 2


def test_findings_and_counters_together(emulator_environment: Environment) -> None:
    text = f"{_HEAD}  __shared__ float s[64];\n  s[t] = a[t];\n  b[t] = s[63 - t];\n}}\n"
    emulator = Emulator(text, counters=True, environment=emulator_environment)
    report = emulator.launch("k", (1, 1, 1), (64, 1, 1), [np.ones(64, np.float32), np.ones(64, np.float32)])
    assert {finding.kind for finding in report.findings} == {"race", "init"} and report.counters is not None
    assert report.counters.total.shared_written == 256


def test_what_is_counted_has_red_zones(emulator_environment: Environment) -> None:
    text = f"{_HEAD}  __shared__ float s[32], r[32];\n  float *p = s;\n  p[t + 16] = r[t] = 1;\n  b[t] = r[t];\n}}\n"
    arrays = [np.zeros(32, np.float32), np.zeros(32, np.float32)]
    Emulator(text, (), counters=True, environment=emulator_environment).launch("k", (1, 1, 1), (32, 1, 1), arrays)
    report = Emulator(text, counters=True, environment=emulator_environment).launch("k", (1, 1, 1), (32, 1, 1), arrays)
    assert [(finding.kind, finding.buffer, finding.element) for finding in report.findings] == [("bounds", "s", 32)]


def test_buffers_begin_at_a_sector_wherever_numpy_put_them(emulator_environment: Environment) -> None:
    emulator = Emulator(f"{_HEAD}  b[t] = a[t];\n}}\n", (), counters=True, environment=emulator_environment)
    for start in range(4):
        whole: list[np.ndarray[Any, Any]] = [np.arange(64, dtype=np.float32) for _ in range(2)]
        arrays = [array[start : start + 32] for array in whole]
        counters = emulator.launch("k", (1, 1, 1), (32, 1, 1), arrays).counters
        assert counters is not None and counters.total.global_sectors == 8
        np.testing.assert_array_equal(whole[1][start : start + 32], whole[0][start : start + 32])


def test_nothing_is_counted_unless_asked(emulator_environment: Environment) -> None:
    emulator = Emulator(f"{_HEAD}  b[t] = a[t];\n}}\n", (), environment=emulator_environment)
    arrays = [np.zeros(32, np.float32), np.zeros(32, np.float32)]
    assert emulator.launch("k", (1, 1, 1), (32, 1, 1), arrays).counters is None


def test_launches_are_counted_each_by_itself(emulator_environment: Environment) -> None:
    emulator = Emulator(f"{_HEAD}  b[t] = a[t] * 2; // here\n}}\n", (), counters=True, environment=emulator_environment)
    first, second = _launch(emulator), _launch(emulator, grid=3)
    assert (first.total.global_requests, second.total.global_requests) == (2, 6)
    assert (first.total.operations, second.total.operations) == (32, 96)
    assert second.grid == (3, 1, 1) and second.text(7) == "b[t] = a[t] * 2; // here"


def test_instructions_of_other_machines_are_not_known(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("build", "emulator"):
        monkeypatch.setattr(f"treadle.backends.cuda.emulator.{module}.counts_operations", lambda: False)
    here = count("b[t] = a[t] * expf(a[t + 1]); // here")["here"]
    assert (here.operations, here.special) == (None, None)
    assert (here.global_requests, here.global_sectors, here.global_ideal) == (3, 13, 12)


def test_total_is_the_sum_of_the_lines() -> None:
    lines = (LineCounters(3, global_requests=1, operations=4), LineCounters(5, global_requests=2, operations=6))
    counters = Counters("", (1, 1, 1), (1, 1, 1), lines)
    assert counters.total == LineCounters(0, global_requests=3, operations=10)
    assert counters.line(5).operations == 6 and counters.line(4) == LineCounters(4)
    unknown = dataclasses.replace(lines[0], operations=None)
    assert Counters("", (1, 1, 1), (1, 1, 1), (unknown, lines[1])).total.operations is None
