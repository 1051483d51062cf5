"""What this machine is: its processor as a target, and what compiled code needs of it."""

import platform
from pathlib import Path

import pytest

from treadle.api import resolve_target
from treadle.target import INSTRUCTION_SETS, KIB, MATRIX_UNITS, TARGETS, Target
from treadle.target.host import (
    CPUINFO,
    FEATURES,
    features_of,
    host_features,
    host_target,
    lacks,
    native_isa,
    needs_of,
    processor_words,
    target_of,
    vendor_of,
)  # fmt: skip

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
    assert target_of(V4 | unit, "x86_64", tmp_path).matrix_unit == "amx"
    for feature in unit:
        assert target_of(V4 | (unit - {feature}), "x86_64", tmp_path).matrix_unit == "none"


UNITS = [
    ("vnni", {"avx512_vnni"}, "AuthenticAMD"),
    ("vnni_bf16", {"avx512_vnni", "avx512_bf16"}, "AuthenticAMD"),
    ("none", {"avx512_bf16"}, "AuthenticAMD"),
    ("none", {"avx_vnni"}, "AuthenticAMD"),
    ("vnni", {"avx512_vnni", "avx512_bf16"}, "GenuineIntel"),
    ("vnni", {"avx512_vnni", "avx512_bf16"}, ""),
    ("amx", {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"}, "GenuineIntel"),
]


@pytest.mark.parametrize(("unit", "features", "vendor"), UNITS)
def test_vectors_multiply_where_there_is_nothing_faster(
    unit: str, features: set[str], vendor: str, tmp_path: Path
) -> None:
    """Those of bfloat16 are faster than float32's on processors of one vendor only."""
    assert target_of(V4 | features, "x86_64", tmp_path, vendor).matrix_unit == unit


@pytest.mark.parametrize("name", MATRIX_UNITS)
def test_code_for_a_unit_needs_its_features(name: str) -> None:
    needs, plain = (needs_of(Target.parse(text)).split() for text in (f"avx512{{matrix_unit={name}}}", "avx512"))
    assert set(needs) == {*plain, *MATRIX_UNITS[name].features} and len(needs) == len(set(needs))
    assert not {"amx_tile", "avx512_vnni"} & set(plain)


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
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nvendor_id\t: AuthenticAMD\n{line}\nbugs\t\t: none\n")
    assert features_of(tmp_path / "cpuinfo") == {"fpu", "avx2", "fma"}
    assert vendor_of(tmp_path / "cpuinfo") == "AuthenticAMD"


@pytest.mark.skipif(processor_words() is None, reason="no cpuid")
def test_a_processor_has_the_features_that_linux_lists() -> None:
    told = processor_words() or set()
    assert told & {"sse2", "xsave"} and told >= features_of(CPUINFO) & FEATURES.keys()


@pytest.mark.skipif(processor_words() is None, reason="no cpuid")
def test_features_that_the_processor_denies_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another processor, as under an emulator: none has all of these."""
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {' '.join(FEATURES)}\n")
    assert host_features(tmp_path / "cpuinfo") == {"fpu", *(processor_words() or ())}
    assert native_isa(CPUINFO) == "native" and native_isa(tmp_path / "cpuinfo").startswith("x86-64")
    monkeypatch.setattr("treadle.target.host.processor_words", lambda: frozenset({"sse2", "avx"}))
    assert host_features(tmp_path / "absent") == {"sse2", "avx"}
    assert lacks(f"{platform.machine()} sse2 avx avx2") == ["avx2"]
    monkeypatch.setattr("treadle.target.host.processor_words", lambda: None)
    assert host_features(tmp_path / "cpuinfo") == {"fpu", *FEATURES}


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
