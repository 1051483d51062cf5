"""Resources of compiled kernels, and theoretical occupancy."""

import re

import pytest

from treadle.backends.cuda.compiler import Unit, compile_cubin
from treadle.backends.cuda.cubin import Resources
from treadle.backends.cuda.machine_code import occupancy
from treadle.errors import TreadleError
from treadle.target import KIB, Target

KERNELS = """
extern "C" __global__ void __launch_bounds__(128) shares(const float *x, float *y) {
    __shared__ float tile[300];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[127 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(1024) spills(const float *x, float *y, int n) {
    float a[100];
    for (int i = 0; i < 100; i++) a[i] = x[threadIdx.x + i * 1024];
    for (int k = 0; k < n; k++) {
        float sum = 0;
        for (int i = 0; i < 100; i++) { a[i] = a[i] * 1.5f + x[i + k]; sum += a[i]; }
        __syncthreads();
        for (int i = 0; i < 100; i++) a[i] += sum * i;
    }
    for (int i = 0; i < 100; i++) y[threadIdx.x + 1024 * i] = a[i];
}
"""
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_NUMBERS = (
    r"Used (\d+) registers",
    r"(\d+) bytes smem",
    r"(\d+) bytes stack",
    r"(\d+) bytes spill s",
    r"(\d+) bytes spill l",
)

A100, RTX_3090 = Target.parse("sm_80"), Target.parse("sm_86")


def printed(target: str) -> dict[str, Resources]:
    """What ptxas prints of the kernels."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    _, program = nvrtc.nvrtcCreateProgram(KERNELS.encode(), b"k.cu", 0, [], [])
    options = (f"--gpu-architecture={target}", "--ptxas-options=-v", "--maxrregcount=255", "--no-cache")
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    assert status.value == 0
    log = bytes(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    _, *parts = _ENTRY.split(log.decode())
    found = [[re.search(each, part) for each in _NUMBERS] for part in parts[1::2]]
    numbers = [[0 if match is None else int(match[1]) for match in each] for each in found]
    return {name: Resources(*each) for name, each in zip(parts[::2], numbers, strict=True)}


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])
def test_resources_are_those_that_ptxas_prints(target: str) -> None:
    wanted = printed(target)
    assert wanted["shares"].shared_bytes == 1200 and wanted["spills"].spills
    assert compile_cubin(Unit("k", KERNELS), Target.parse(target)).resources == wanted


@pytest.mark.parametrize(
    ("resources", "threads", "blocks", "limiter"),
    [
        (Resources(32), 256, 8, "warps"),
        (Resources(16), 32, 32, "blocks"),
        (Resources(128), 256, 2, "registers"),
        # 33 registers of 32 lanes round up to 1280 a warp: 51 warps, six blocks of eight.
        (Resources(33), 256, 6, "registers"),
        # A part of the multiprocessor holds 12 warps of 1280 registers, not 51 / 4: 48 warps are 16 blocks of three.
        (Resources(33), 96, 16, "registers"),
        # Warps are whole: 33 threads take two.
        (Resources(32), 33, 32, "warps"),
        # 5120 bytes and 1 KiB are a multiple of 128; one byte more takes 128 more: 27 blocks in 164 KiB, then 26.
        (Resources(16, shared_bytes=5120 - 1024), 32, 32, "blocks"),
        (Resources(16, shared_bytes=5120), 32, 27, "shared memory"),
        (Resources(16, shared_bytes=5121), 32, 26, "shared memory"),
        # 48 KiB and the reserved 1 KiB go three times into 164 KiB.
        (Resources(32, shared_bytes=48 * KIB), 128, 3, "shared memory"),
    ],
)
def test_the_scarcest_resource_limits(resources: Resources, threads: int, blocks: int, limiter: str) -> None:
    found = occupancy(resources, A100, threads)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.warps == blocks * -(-threads // 32)
    assert found.fraction == found.warps / 64


@pytest.mark.parametrize(
    ("target", "resources", "threads", "blocks", "warps"),
    [
        # 1536 threads and 16 blocks, 1536 and 24, 2048 and 32: full with small blocks, or not.
        ("sm_86", Resources(32), 128, 12, 48),
        ("sm_86", Resources(32), 64, 16, 32),
        ("sm_89", Resources(32), 64, 24, 48),
        ("sm_90", Resources(32), 64, 32, 64),
        ("sm_120", Resources(32), 32, 24, 24),
        # 1024 threads and 16 blocks; 64 KiB of shared memory, of which none is reserved.
        ("sm_75", Resources(32), 128, 8, 32),
        ("sm_75", Resources(32), 32, 16, 16),
        ("sm_75", Resources(32, shared_bytes=64 * KIB), 256, 1, 8),
        ("sm_75", Resources(32, shared_bytes=16 * KIB), 128, 4, 16),
        # 255 registers: 8 warps on any of them.
        ("sm_80", Resources(255), 256, 1, 8),
        ("sm_100", Resources(255), 64, 4, 8),
        # One block of all shared memory that there is: 163, 99 and 227 KiB, and 1 KiB that is reserved.
        ("sm_80", Resources(32, shared_bytes=163 * KIB), 256, 1, 8),
        ("sm_86", Resources(32, shared_bytes=99 * KIB), 256, 1, 8),
        ("sm_90", Resources(32, shared_bytes=227 * KIB), 256, 1, 8),
        ("sm_100", Resources(32, shared_bytes=113 * KIB), 256, 2, 16),
        ("sm_120", Resources(32, shared_bytes=49 * KIB), 256, 2, 16),
    ],
)
def test_targets_hold_as_much_as_the_calculator_says(
    target: str, resources: Resources, threads: int, blocks: int, warps: int
) -> None:
    found = occupancy(resources, Target.parse(target), threads)
    assert (found.blocks, found.warps) == (blocks, warps)


def test_dynamic_shared_memory_counts() -> None:
    assert occupancy(Resources(32), A100, 128, dynamic_shared=100 * KIB).blocks == 1


@pytest.mark.parametrize(
    ("resources", "threads", "dynamic", "reason"),
    [
        (Resources(32), 1056, 0, "1056 threads in a block, 32 over the limit"),
        (Resources(32), 128, 100 * KIB, "102400 bytes of shared memory in a block, 1024 over the limit"),
        (Resources(128), 1024, 0, "131072 registers in a block, 65536 over the limit"),
        (Resources(256), 32, 0, "256 registers in a thread, 1 over the limit"),
        # Nine warps of 5632 registers would fit if the parts of a multiprocessor shared theirs; three a part do not.
        (Resources(176), 288, 0, "67584 registers in a block, 2048 over the limit"),
    ],
)
def test_a_block_that_does_not_fit_is_told_by_how_much(
    resources: Resources, threads: int, dynamic: int, reason: str
) -> None:
    with pytest.raises(TreadleError, match=reason):
        occupancy(resources, RTX_3090, threads, dynamic)


def test_a_cpu_has_no_occupancy() -> None:
    with pytest.raises(TreadleError, match="'cpu' has no multiprocessors"):
        occupancy(Resources(32), Target.parse("cpu"), 1)
