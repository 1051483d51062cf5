"""What this machine is: its processor as a target, and what compiled code needs of it."""

import platform
from pathlib import Path

import pytest

from treadle.api import resolve_target
from treadle.host import features_of, host_target, lacks, needs_of, target_of
from treadle.instruction_sets import INSTRUCTION_SETS
from treadle.target import KIB, TARGETS, Target

V3 = frozenset(INSTRUCTION_SETS["x86-64-v3"][1])
V4 = frozenset(INSTRUCTION_SETS["x86-64-v4"][1])
HOSTS = {
    "avx512": (V4, "x86_64"),
    "avx2": (V3 | {"avx512f"}, "x86_64"),
    "sse2": (V3 - {"avx2"}, "x86_64"),
    "neon": (frozenset({"fp", "asimd", "sve"}), "aarch64"),
}


@pytest.mark.parametrize(("like", "host"), HOSTS.items())
def test_a_host_has_the_vectors_of_its_instruction_set(
    like: str, host: tuple[frozenset[str], str], tmp_path: Path
) -> None:
    found, expected = target_of(*host, tmp_path), TARGETS[like]
    assert (found.name, found.isa) == ("cpu", "native")
    assert (found.vector_bytes, found.vector_registers) == (expected.vector_bytes, expected.vector_registers)
    assert (found.l1_bytes, found.l2_bytes) == (expected.l1_bytes, expected.l2_bytes), "no cache is listed"


def test_a_matrix_unit_multiplies_bfloat16_and_bytes(tmp_path: Path) -> None:
    unit = {"amx_tile", "amx_bf16", "amx_int8"}
    assert target_of(V4 | unit, "x86_64", tmp_path).has_unit
    for feature in unit:
        assert not target_of(V4 | (unit - {feature}), "x86_64", tmp_path).has_unit
    assert set(needs_of(Target.parse("avx512{matrix_unit=amx}")).split()) >= unit
    assert not unit & set(needs_of(TARGETS["avx512"]).split())


@pytest.mark.parametrize(
    ("size", "bytes"), [("1280K", 1280 * KIB), ("4M", 4096 * KIB), ("65536", 65536), ("unknown", None), ("0K", None)]
)
def test_the_caches_are_read(size: str, bytes: int | None, tmp_path: Path) -> None:
    caches = [("1", "Instruction", "64K"), ("1", "Data", "48K"), ("2", "Unified", size), ("3", "Unified", "32M")]
    for n, (level, type, text) in enumerate(caches):
        (tmp_path / f"index{n}").mkdir()
        for name, value in (("level", level), ("type", type), ("size", text)):
            (tmp_path / f"index{n}" / name).write_text(f"{value}\n")
    found = target_of(V3, "x86_64", tmp_path)
    assert (found.l1_bytes, found.l2_bytes) == (48 * KIB, bytes or TARGETS["avx2"].l2_bytes)


@pytest.mark.parametrize("line", ["flags\t\t: fpu avx2 fma", "Features\t: fpu avx2 fma"])
def test_features_are_read(line: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{line}\nbugs\t\t: none\n")
    assert features_of(tmp_path / "cpuinfo") == {"fpu", "avx2", "fma"}


def test_a_processor_without_a_list_of_features_is_itself(tmp_path: Path) -> None:
    (word,) = features_of(tmp_path / "absent")
    assert word.startswith("unread")
    assert target_of(frozenset({word}), "x86_64", tmp_path).vector_bytes == 16
    assert target_of(frozenset({word}), "riscv64", tmp_path).vector_bytes == 16


def test_the_target_cpu_is_this_machine() -> None:
    assert resolve_target("cpu") == host_target()
    assert resolve_target("cpu{cores=3}").cores == 3
    assert lacks(needs_of(host_target())) == []


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86-64")
def test_what_a_machine_lacks_is_named() -> None:
    assert lacks("x86_64 sse2 avx2048f fma9") == ["avx2048f", "fma9"]
    assert lacks(needs_of(TARGETS["sse2"])) == []
    assert lacks(needs_of(TARGETS["neon"])) == ["aarch64"]
    assert lacks("") == ["an unknown machine"]
    assert "sse2" in needs_of(TARGETS["cpu"]).split()
