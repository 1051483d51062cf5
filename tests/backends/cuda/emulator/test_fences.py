"""Fences and atomics: kernels that hand results from thread to thread are silent; each of their faults is a race."""

from collections.abc import Callable

import pytest

from tests.backends.cuda.emulator.faults import Kernel, Variants, every_correct, every_fault
from treadle.backends.cuda.emulator import Emulator

LAST_BLOCK = """b[g] = a[t] + blockIdx.x; // WRITE
  __threadfence();
  __syncthreads();
  __shared__ bool last;
  if (t == 0) last = atomicAdd(&c[0], 1) == gridDim.x - 1;
  __syncthreads();
  if (last) {
    float sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += b[i * 64 + t]; // READ
    b[960 + t] = sum;
    if (t == 0) c[0] = 0;
  }"""
PROGRAMMING_GUIDE = """__shared__ bool last;
  if (t == 0) {
    b[blockIdx.x] = a[blockIdx.x]; // WRITE
    __threadfence();
    unsigned value = atomicInc((unsigned *)c, gridDim.x);
    last = value == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t < gridDim.x) b[64 + t] = b[t]; // READ"""
BARRIER_THEN_FENCE = """__shared__ bool last;
  b[g] = a[t]; // WRITE
  __syncthreads();
  if (t == 0) {
    __threadfence();
    last = atomicAdd(&c[0], 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last) b[960 + t] = b[(g + 64) % 512]; // READ"""
TURNS = """volatile int *turn = c;
  if (t == 0) {
    while (*turn != blockIdx.x) {}
    __threadfence();
  }
  __syncthreads();
  b[t] += a[t]; // READ
  __syncthreads();
  if (t == 0) {
    __threadfence();
    *turn = blockIdx.x + 1;
  }"""
LOCK = """if (t % 32 == 0) {
    while (atomicCAS(&c[0], 0, 1) != 0) {}
    __threadfence();
    b[0] += a[t]; // READ
    __threadfence();
    atomicExch(&c[0], 0);
  }"""
WITHIN_A_BLOCK = """__shared__ float s[2];
  __shared__ volatile int ready;
  if (t == 0) ready = 0;
  __syncthreads();
  if (t == 40) {
    s[0] = a[t]; // WRITE
    __threadfence_block();
    ready = 1;
  }
  if (t == 0) {
    while (!ready) {}
    __threadfence_block(); //
    b[g] = s[0]; // READ
  }"""
WITHIN_A_BLOCK_BY_ATOMICS = """__shared__ float s[2];
  __shared__ int ready;
  if (t == 0) ready = 0;
  __syncthreads();
  if (t == 40) {
    s[0] = a[t]; // WRITE
    __threadfence_block();
    atomicExch(&ready, 1);
  }
  if (t == 0) {
    while (!atomicAdd(&ready, 0)) {}
    b[g] = s[0]; // READ
  }"""
BY_LANES = """b[g] = a[t]; // WRITE
  __threadfence();
  __syncwarp();
  int old = 0;
  if (t == 0) old = atomicAdd(&c[0], 1);
  __syncwarp(0xffffffff);
  old = __shfl_sync(~0u, old, 0);
  if (old == gridDim.x - 1 && t < 32) b[960 + t] = b[(g + 64) % 512]; // READ"""
CHAIN = """if (t == 0 && blockIdx.x == 0) {
    b[0] = a[0]; // WRITE
    __threadfence();
    atomicExch(&c[0], 1);
  }
  if (t == 0 && blockIdx.x == 1) {
    while (!atomicAdd(&c[0], 0)) {}
    __threadfence(); // of the second
    atomicExch(&c[1], 1);
  }
  if (t == 0 && blockIdx.x == 2) {
    while (!atomicAdd(&c[1], 0)) {}
    b[1] = b[0]; // READ
  }"""
CHAIN_THROUGH_A_BLOCK = """volatile int *flag = c;
  if (blockIdx.x == 0 && t == 0) {
    b[0] = a[0]; // WRITE
    __threadfence_block();
    flag[0] = 1;
  }
  if (blockIdx.x == 0 && t == 32) {
    while (!flag[0]) {}
    __threadfence(); // of the second
    flag[1] = 1;
  }
  if (blockIdx.x == 1 && t == 0) {
    while (!flag[1]) {}
    __threadfence(); // of the third
    b[1] = b[0]; // READ
  }"""

NO_FENCE, BLOCK_FENCE = ("__threadfence();", ""), ("__threadfence();", "__threadfence_block();")
KERNELS = {
    "the last block adds up": Kernel(
        LAST_BLOCK,
        {
            "no fence": NO_FENCE,
            "a fence for the block alone": BLOCK_FENCE,
            "a fence by the thread of the counter alone": ("__threadfence();", "if (t == 0) __threadfence();"),
            "a fence before the write": (
                "b[g] = a[t] + blockIdx.x; // WRITE\n  __threadfence();",
                "__threadfence();\n  b[g] = a[t] + blockIdx.x; // WRITE",
            ),
            "no barrier before the counter": ("__syncthreads();\n  __shared__", "__shared__"),
            "every block reads": ("if (last)", "if (true)"),
            "the last but one": ("gridDim.x - 1;", "gridDim.x - 2;"),
            "two counters": ("&c[0], 1) == gridDim.x - 1", "&c[blockIdx.x % 2], 1) == gridDim.x / 2 - 1"),
        },
        {"a fence for the whole system": ("__threadfence()", "__threadfence_system()")},
    ),
    "as in the programming guide": Kernel(
        PROGRAMMING_GUIDE,
        {
            "no fence": NO_FENCE,
            "a fence behind the counter": (
                "__threadfence();\n    unsigned value = atomicInc((unsigned *)c, gridDim.x);",
                "unsigned value = atomicInc((unsigned *)c, gridDim.x); __threadfence();",
            ),
        },
    ),
    "a barrier, then the fence of one thread": Kernel(
        BARRIER_THEN_FENCE,
        {"no fence": NO_FENCE, "no barrier": ("__syncthreads();\n  if (t == 0)", "if (t == 0)")},
        {"one fence is enough": ("- 1;\n    __threadfence();", "- 1;")},
    ),
    "blocks take turns": Kernel(
        TURNS,
        {
            "no fence behind the wait": ("{}\n    __threadfence();", "{}"),
            "a fence for the block behind the write": (
                "__threadfence();\n    *turn",
                "__threadfence_block();\n    *turn",
            ),
            "no fence before the turn is given": ("__threadfence();\n    *turn", "*turn"),
            "no barrier behind the wait": ("__syncthreads();\n  b[t]", "b[t]"),
            "no barrier before the turn is given": ("// READ\n  __syncthreads();", "// READ"),
        },
        {
            "given by an atomic": ("*turn = blockIdx.x + 1;", "atomicExch(&c[0], blockIdx.x + 1);"),
            "every thread fences behind the wait": (
                "__threadfence();\n  }\n  __syncthreads();",
                "} __syncthreads(); __threadfence();",
            ),
        },
    ),
    "a lock": Kernel(
        LOCK,
        {
            "no fence before it is given back": ("__threadfence();\n    atomicExch", "atomicExch"),
            "not taken": ("while (atomicCAS(&c[0], 0, 1) != 0) {}", ""),
            "another lock": ("&c[0]", "&c[blockIdx.x % 2 * 2 + t / 32]"),
        },
        {"an atomic's result needs no fence behind it": ("{}\n    __threadfence();", "{}")},
    ),
    "a flag within a block": Kernel(
        WITHIN_A_BLOCK,
        {
            "no fence behind the write": ("__threadfence_block();\n", "\n"),
            "no fence before the read": ("__threadfence_block(); //", "//"),
        },
        {"fences for the device": ("__threadfence_block()", "__threadfence()")},
    ),
    "a flag within a block, by atomics": Kernel(
        WITHIN_A_BLOCK_BY_ATOMICS, {"no fence": ("__threadfence_block();", "")}
    ),
    "lanes of a warp hand on": Kernel(
        BY_LANES,
        {
            "no fence": NO_FENCE,
            "no warp barrier before the counter": ("__syncwarp();", ""),
            "no warp barrier behind the counter": ("__syncwarp(0xffffffff);", ""),
            "a warp barrier of half the warp": ("0xffffffff);\n", "t % 32 < 16 ? 0xffff : 0xffff0000);\n"),
        },
    ),
    "from block to block to block": Kernel(
        CHAIN, {"no fence": NO_FENCE, "none of the second": ("__threadfence(); // of the second", "")}, grid=3
    ),
    "through a second thread of the block": Kernel(
        CHAIN_THROUGH_A_BLOCK,
        {
            "no fence": ("__threadfence_block();", ""),
            "the second's for its block alone": ("__threadfence(); // of the second", "__threadfence_block();"),
            "none of the third": ("__threadfence(); // of the third", ""),
        },
        grid=2,
    ),
}  # fmt: skip

HANDED_ON = {
    "a counter": Kernel(LAST_BLOCK, {"c": ("atomicAdd(&c[0], 1)", "c[0]++")}),
    "a turn": Kernel(TURNS, {"c": ("*turn = blockIdx", "c[0] = blockIdx")}),
    "a flag": Kernel(WITHIN_A_BLOCK_BY_ATOMICS, {"ready": ("atomicExch(&ready, 1)", "ready = 1")}),
    "what the thread of the counter says": Kernel(LAST_BLOCK, {"last": ("__syncthreads();\n  if (last)", "if (last)")}),
}
"""The fault is named after the variable that it is about."""


@pytest.fixture(scope="module")
def variants(emulate: Callable[..., Emulator]) -> Variants:
    return Variants(emulate, KERNELS | HANDED_ON)


@pytest.mark.parametrize(("name", "edit"), every_correct(KERNELS))
def test_a_correct_kernel_is_silent(name: str, edit: str, variants: Variants) -> None:
    variants.assert_silent(name, edit)


@pytest.mark.parametrize(("name", "fault"), every_fault(KERNELS))
def test_a_fault_is_a_race(name: str, fault: str, variants: Variants) -> None:
    variants.assert_race(name, fault)


@pytest.mark.parametrize(("name", "buffer"), every_fault(HANDED_ON))
def test_what_is_handed_on_with_must_be_atomic_itself(name: str, buffer: str, variants: Variants) -> None:
    for report in variants.launches(name, buffer):
        assert any(finding.kind == "race" and finding.buffer == buffer for finding in report.findings), str(report)
