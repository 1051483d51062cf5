"""What orders the lanes of a warp: `__syncwarp`, for the lanes of its mask, and no other operation of a warp."""

from collections.abc import Callable

import pytest

from tests.backends.cuda.emulator.faults import Kernel, Variants, every_correct, every_fault
from treadle.backends.cuda.emulator import Emulator

HALVES = """__shared__ float s[64];
  const int lane = t % 32;
  s[t] = a[t]; // WRITE
  if (lane < 16) __syncwarp(0x0000ffff);
  if (lane < 16) b[g] = s[t ^ 1]; // READ"""
BOTH_HALVES = """__shared__ float s[64];
  s[t] = a[t]; // WRITE
  __syncwarp(t % 32 < 16 ? 0x0000ffff : 0xffff0000);
  b[g] = s[t ^ 15]; // READ"""
PAIRS = """const int lane = t % 32;
  if (lane == 0) b[g] = a[t]; // WRITE
  if (lane < 2) __syncwarp(0x3);
  if (lane == 1 || lane == 2) __syncwarp(0x6);
  if (lane == 2) b[g] = b[g - 2]; // READ"""
READ_FIRST = """__shared__ float s[64];
  const int lane = t % 32;
  s[t] = a[t];
  __syncwarp();
  float sum = 0;
  for (int i = 1; i < 8; i *= 2) {
    if (lane < 8) sum += s[t ^ i]; // READ
    if (lane < 8) __syncwarp(0xff);
    if (lane < 8) s[t] = sum; // WRITE
    if (lane < 8) __syncwarp(0xff); //
  }
  b[g] = sum;"""
ALL = """__shared__ float s[64];
  s[t] = a[t]; // WRITE
  __syncwarp();
  b[g] = s[t ^ 16] + s[t ^ 1]; // READ"""
GLOBAL = """b[g] = a[t]; // WRITE
  if (t % 2) __syncwarp(0xaaaaaaaa); else __syncwarp(0x55555555);
  b[512 + g] = b[g ^ 2]; // READ"""
MATRIX = """__shared__ alignas(16) unsigned short s[2][8][8];
  for (int i = t % 32; i < 64; i += 32) s[t / 32][i / 8][i % 8] = (unsigned short)t; // WRITE
  __syncwarp();
  const treadle_vec<unsigned, 1> x = treadle_ldmatrix_x1(&s[t / 32][t % 8][0]); // READ
  b[g] = x.v[0];"""
ASYNCHRONOUS = """__shared__ alignas(16) float s[256];
  treadle_cp_async_16(&s[t * 4], &a[t % 16 * 4]); // WRITE
  treadle_cp_async_commit();
  treadle_cp_async_wait<0>();
  __syncwarp(0xff | 0xffffff00);
  b[g] = s[(t ^ 9) * 4]; // READ"""
LEFT_EARLY = """__shared__ float s[64];
  s[t] = a[t]; // WRITE
  if (t % 32 >= 24) return;
  __syncwarp(0x00ffffff);
  b[g] = s[t ^ 1]; // READ"""

KERNELS = {
    "half a warp": Kernel(
        HALVES,
        {
            "the other half's": ("t ^ 1]", "t ^ 16]"),
            "the other half reads": ("if (lane < 16) b[g]", "if (lane >= 16) b[g]"),
            "too few lanes": ("if (lane < 16) __syncwarp(0x0000ffff)", "if (lane % 2) __syncwarp(0xaaaaaaaa)"),
        },
        {"more lanes": ("if (lane < 16) __syncwarp(0x0000ffff)", "__syncwarp(0xffffffff)")},
    ),
    "two halves": Kernel(
        BOTH_HALVES, {"across": ("t ^ 15", "t ^ 31")}, {"then all": ("// WRITE", "__syncwarp();")}
    ),
    "from pair to pair": Kernel(
        PAIRS,
        {
            "in the other order": (
                "if (lane < 2) __syncwarp(0x3);\n  if (lane == 1 || lane == 2) __syncwarp(0x6);",
                "if (lane == 1 || lane == 2) __syncwarp(0x6);\n  if (lane < 2) __syncwarp(0x3);",
            ),
            "another pair": ("if (lane < 2) __syncwarp(0x3)", "if (lane / 2 == 2) __syncwarp(0x30)"),
        },
    ),
    "reads before writes": Kernel(
        READ_FIRST,
        {
            "no barrier behind the reads": ("__syncwarp(0xff);\n", "{}\n"),
            "no barrier behind the writes": ("__syncwarp(0xff); //", "{}"),
        },
    ),
    "a whole warp": Kernel(
        ALL,
        {
            "a shuffle": ("__syncwarp()", "__shfl_sync(~0u, t, 0)"),
            "a butterfly": ("__syncwarp()", "__shfl_xor_sync(~0u, t, 16)"),
            "a vote": ("__syncwarp()", "__any_sync(~0u, t)"),
            "a ballot": ("__syncwarp()", "__ballot_sync(~0u, t)"),
            "a match": ("__syncwarp()", "__match_any_sync(~0u, t)"),
            "a reduction": ("__syncwarp()", "__reduce_add_sync(~0u, t)"),
            "a fence": ("__syncwarp()", "__threadfence_block()"),
        },
        {"a barrier of the block": ("__syncwarp()", "__syncthreads()")},
    ),
    "volatile memory": Kernel(
        ALL.replace("s[64];\n", "r[64];\n  volatile float *s = r;\n"), {"no barrier": ("__syncwarp();", "")}
    ),
    "global memory": Kernel(GLOBAL, {"lanes of the other mask": ("g ^ 2", "g ^ 1")}),
    "a matrix load": Kernel(MATRIX, {"no barrier": ("__syncwarp();", "")}),
    "an asynchronous copy": Kernel(ASYNCHRONOUS, {"no barrier": ("__syncwarp(0xff | 0xffffff00);", "")}),
    "lanes that have left": Kernel(LEFT_EARLY, {"written by one of them": ("t ^ 1]", "t ^ 8]")}),
}  # fmt: skip


@pytest.fixture(scope="module")
def variants(emulate: Callable[..., Emulator]) -> Variants:
    return Variants(emulate, KERNELS)


@pytest.mark.parametrize(("name", "edit"), every_correct(KERNELS))
def test_a_correct_kernel_is_silent(name: str, edit: str, variants: Variants) -> None:
    variants.assert_silent(name, edit)


@pytest.mark.parametrize(("name", "fault"), every_fault(KERNELS))
def test_a_fault_is_a_race(name: str, fault: str, variants: Variants) -> None:
    variants.assert_race(name, fault)
