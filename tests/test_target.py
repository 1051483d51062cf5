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
