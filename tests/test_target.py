"""Targets: names, limits, and which one a device gets."""

from pathlib import Path

import pytest

from treadle.errors import TreadleError
from treadle.target import KIB, TARGETS, Target, native_vector_bytes


@pytest.mark.parametrize("name", ["cpu", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"])
def test_parse_returns_the_target_of_that_name(name: str) -> None:
    assert Target.parse(name).name == name


def test_unknown_name_lists_what_is_accepted() -> None:
    with pytest.raises(TreadleError) as caught:
        Target.parse("sm_42")
    assert "sm_42" in caught.value.message
    assert caught.value.accepted == ", ".join(TARGETS)


def test_cuda_is_left_to_the_caller() -> None:
    with pytest.raises(TreadleError, match="must be resolved first"):
        Target.parse("cuda")


def test_limits_of_ampere_differ_by_chip() -> None:
    assert Target.parse("sm_80").shared_per_block == 163 * KIB
    assert Target.parse("sm_86").shared_per_block == 99 * KIB
    assert Target.parse("sm_86").max_warps_per_multiprocessor == 48


# CUDA C++ Programming Guide 13.0, technical specifications per compute capability: resident threads and blocks of a
# multiprocessor, and KiB of shared memory of a multiprocessor and of a block.
LIMITS = {
    "sm_80": (2048, 32, 164, 163),
    "sm_86": (1536, 16, 100, 99),
    "sm_89": (1536, 24, 100, 99),
    "sm_90": (2048, 32, 228, 227),
    "sm_90a": (2048, 32, 228, 227),
    "sm_100": (2048, 32, 228, 227),
    "sm_120": (1536, 24, 100, 99),
}


@pytest.mark.parametrize(("name", "limits"), LIMITS.items())
def test_limits_are_those_of_the_programming_guide(name: str, limits: tuple[int, int, int, int]) -> None:
    threads, blocks, shared, shared_of_block = limits
    target = Target.parse(name)
    assert target.max_warps_per_multiprocessor * target.warp_size == threads
    assert target.max_blocks_per_multiprocessor == blocks
    assert target.shared_per_multiprocessor == shared * KIB
    assert target.shared_per_block == shared_of_block * KIB
    assert target.shared_per_block_static == 48 * KIB
    assert (target.registers_per_multiprocessor, target.registers_per_thread) == (65536, 255)
    assert target.max_threads_per_block == 1024


def test_every_gpu_has_its_limits_checked() -> None:
    assert set(LIMITS) == {name for name, target in TARGETS.items() if target.is_cuda}


# f32 lanes of a multiprocessor, boost clock in GHz, bits of the memory's bus, Gbit/s of one of its pins.
CHIPS = {
    "sm_80": (64, 1.410, 5120, 3.186),
    "sm_86": (128, 1.695, 384, 19.5),
    "sm_89": (128, 2.520, 384, 21.0),
    "sm_90": (128, 1.980, 5120, 5.2376),
    "sm_100": (128, 1.980, 8192, 7.8125),
    "sm_120": (128, 2.407, 512, 28.0),
}


@pytest.mark.parametrize(("name", "chip"), CHIPS.items())
def test_peaks_follow_from_the_chip(name: str, chip: tuple[int, float, int, float]) -> None:
    lanes, clock, bus, pin = chip
    target = Target.parse(name)
    assert target.peak_f32 == pytest.approx(target.multiprocessors * lanes * 2 * clock * 1e9, rel=2e-3)
    assert target.peak_bandwidth == pytest.approx(bus / 8 * pin * 1e9, rel=2e-3)
    assert target.peak_tf32_tensor == pytest.approx(target.peak_f16_tensor / 2, rel=5e-3)


def test_a_cpu_block_is_one_thread_without_shared_memory() -> None:
    cpu = Target.parse("cpu")
    assert (cpu.max_threads_per_block, cpu.warp_size, cpu.shared_per_block) == (1, 1, 0)
    assert cpu.vector_bytes == 64
    assert cpu.capability == 0


def test_sm_90a_is_sm_90_by_another_name() -> None:
    assert Target.parse("sm_90a").capability == 90
    assert Target.parse("sm_90a").peak_f32 == Target.parse("sm_90").peak_f32


@pytest.mark.parametrize(
    ("capability", "name"),
    [((8, 0), "sm_80"), ((8, 7), "sm_86"), ((9, 0), "sm_90a"), ((10, 3), "sm_100"), ((12, 1), "sm_120")],
)
def test_a_device_gets_the_newest_target_that_it_runs(capability: tuple[int, int], name: str) -> None:
    assert Target.for_capability(*capability).name == name


def test_a_device_of_another_generation_gets_none() -> None:
    with pytest.raises(TreadleError, match=r"capability 7\.5"):
        Target.for_capability(7, 5)


@pytest.mark.parametrize(("flags", "width"), [("fpu avx2 avx512f", 64), ("fpu avx avx2", 32), ("fpu sse2", 16)])
def test_vector_width_is_read_from_the_flags(tmp_path: Path, flags: str, width: int) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags\t\t: {flags}\n")
    assert native_vector_bytes(cpuinfo) == width


def test_vector_width_without_cpuinfo_is_the_least(tmp_path: Path) -> None:
    assert native_vector_bytes(tmp_path / "absent") == 16
