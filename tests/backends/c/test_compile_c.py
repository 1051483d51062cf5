"""Compiling C text: the cache and its damage, parallel units, and what is said when it fails."""

import ctypes
import dataclasses
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.backends.c.toolchains import COMMANDS, private_environment
from tests.helpers.onnx_models import linear_model
from treadle.backends.c import compiler
from treadle.backends.c.compiler import Unit, build_library, compile_objects, link
from treadle.errors import TreadleError, TreadleWarning
from treadle.target import TARGETS
from treadle.tools.treadle_cli import main

ELF_AARCH64 = 183


def unit(name: str = "answer", value: int = 42) -> Unit:
    return Unit(name, f"int {name}(void) {{ return {value}; }}\n")


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_units_become_one_library_with_the_pool(tmp_path: Path, command: tuple[str, ...]) -> None:
    library = ctypes.CDLL(str(build_library([unit("one", 1), unit("two", 2)], private_environment(tmp_path, command))))
    assert (library.one(), library.two()) == (1, 2)
    assert library.treadle_pool_create is not None


def test_objects_come_in_the_order_of_the_units(tmp_path: Path) -> None:
    objects = compile_objects([unit(f"f{i}", i) for i in range(5)], private_environment(tmp_path))
    assert [f"f{i}".encode() in path.read_bytes() for i, path in enumerate(objects)] == [True] * 5


def test_a_cached_unit_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = link(compile_objects([unit()], private_environment(tmp_path)), private_environment(tmp_path))

    def run_again(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "write", run_again)
    assert (
        link(compile_objects([unit("answer")], private_environment(tmp_path)), private_environment(tmp_path)) == first
    )


def test_other_flags_make_another_object(tmp_path: Path) -> None:
    plain = compile_objects([unit()], private_environment(tmp_path))
    assert compile_objects([unit()], private_environment(tmp_path, flags=("-DX=1",))) != plain


def test_another_header_makes_another_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compile_objects([unit()], private_environment(tmp_path))
    monkeypatch.setattr(compiler, "_headers", lambda: [b"changed"])
    assert compile_objects([unit()], private_environment(tmp_path)) != plain


@pytest.mark.parametrize("damage", [b"", b"short"])
def test_a_damaged_entry_is_compiled_anew(tmp_path: Path, damage: bytes) -> None:
    (made,) = compile_objects([unit()], private_environment(tmp_path))
    intact = made.read_bytes()
    made.write_bytes(damage)
    assert compile_objects([unit()], private_environment(tmp_path)) == [made]
    assert made.read_bytes() == intact


def test_a_wrong_line_is_named_with_its_unit(tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match="unknown_name") as caught:
        compile_objects(
            [unit(), Unit("matmul_3", "int f(void) { return unknown_name; }")], private_environment(tmp_path)
        )
    assert caught.value.where == "matmul_3"
    assert any("-O3" in note for note in caught.value.__notes__)
    assert not list((tmp_path / "scratch").iterdir())


def test_without_a_writable_cache_objects_are_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    with pytest.warns(TreadleWarning, match="file is not used.*Not a directory.*TREADLE_CACHE_DIR naming a") as warned:
        (made,) = compile_objects([unit()], private_environment(occupied))
        assert compile_objects([unit()], private_environment(occupied)) == [made]
    assert made.is_relative_to(tmp_path) and len(warned) == 1


def test_a_compiler_that_does_not_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match="no-such-compiler"):
        compile_objects([unit()], private_environment(tmp_path, ("no-such-compiler",)))


def test_a_machine_without_compilers_hears_what_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TreadleError, match="no C compiler found") as caught:
        compiler.find_toolchain(private_environment(tmp_path))
    assert all(word in str(caught.value) for word in ("TREADLE_CC", "gcc", "ziglang"))


def test_the_wheel_stands_in_for_the_systems_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(compiler, "_version", lambda command: "wheel")
    found = compiler.find_toolchain(dataclasses.replace(private_environment(tmp_path), c_compiler=()))
    assert found.command == (sys.executable, "-m", "ziglang", "cc")


def test_another_architecture_gets_a_cross_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    neon, chosen = TARGETS["neon"], dataclasses.replace(private_environment(tmp_path), c_compiler=())
    monkeypatch.setattr(compiler.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(compiler, "_version", lambda command: "compiler")
    monkeypatch.setattr(compiler.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: object())
    assert compiler.find_toolchain(chosen, neon).command == ("/bin/aarch64-linux-gnu-gcc",)
    assert compiler.find_toolchain(chosen, neon).archiver() == ("/bin/aarch64-linux-gnu-ar",)
    assert compiler.find_toolchain(chosen, TARGETS["avx2"]).command == ("/bin/cc",)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: f"/bin/{name}" if name == "cc" else None)
    zig = (sys.executable, "-m", "ziglang")
    assert compiler.find_toolchain(chosen, neon).command == (*zig, "cc", "-target", "aarch64-linux-gnu")
    assert compiler.find_toolchain(chosen, neon).archiver() == (*zig, "ar")
    asked = dataclasses.replace(chosen, c_compiler=("/opt/zig", "cc"))
    assert compiler.find_toolchain(asked, neon).command == ("/opt/zig", "cc", "-target", "aarch64-linux-gnu")
    assert compiler.find_toolchain(asked, TARGETS["avx2"]).command == ("/opt/zig", "cc")
    aimed = dataclasses.replace(chosen, c_compiler=("zig", "cc", "-target", "aarch64-linux-musl"))
    assert compiler.find_toolchain(aimed, neon).command == aimed.c_compiler
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        TreadleError, match="no C compiler for aarch64 found on this x86_64; accepted: the ziglang wheel"
    ):
        compiler.find_toolchain(chosen, neon)


@pytest.mark.slow  # zig builds a C library for that architecture
@pytest.mark.skipif("zig" not in COMMANDS or platform.machine() != "x86_64", reason="no cross compiler")
def test_a_model_for_another_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word about compilers: the system's knows this machine's architecture alone."""
    monkeypatch.delenv("TREADLE_CC", raising=False)
    monkeypatch.delenv("CC", raising=False)
    model, folder, library = linear_model(tmp_path / "m.onnx"), tmp_path / "model", tmp_path / "library"
    assert main(["compile", str(model), "--target", "neon", "-o", str(folder)]) == 0
    assert (folder / "model.so").read_bytes()[18] == ELF_AARCH64
    assert main(["compile", str(model), "--target", "neon", "--emit", "c-library", "-o", str(library)]) == 0
    listed = subprocess.run([*COMMANDS["zig"][:-1], "ar", "t", str(library / "libm.a")], capture_output=True, text=True)
    assert "library.o" in listed.stdout


FLAGS = {
    "cpu": {"-march=native"},
    "avx512": {"-march=x86-64-v4"},
    "avx2": {"-march=x86-64-v3", "-mprefer-vector-width=256"},
    "sse2": {"-march=x86-64", "-mprefer-vector-width=128"},
    "neon": {"-march=armv8-a"},
}


@pytest.mark.parametrize(("target", "flags"), FLAGS.items())
def test_flags_follow_the_target(target: str, flags: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_version", lambda command: "13")
    found = compiler.find_toolchain(private_environment(tmp_path, ("gcc",)), TARGETS[target])
    assert {flag for flag in found.flags if flag.startswith("-m")} == flags
    assert bool(found.cpu) == (target == "cpu"), "only -march=native depends on the processor at hand"


@pytest.mark.parametrize(
    ("version", "is_told"),
    [
        ("gcc (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022 Free Software Foundation, Inc.", True),
        ("gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0\nCopyright (C) 2021 Free Software Foundation, Inc.", False),
        ("clang version 18.1.8\nTarget: x86_64-pc-linux-gnu\nThread model: posix", False),
    ],
)
def test_copies_are_as_wide_as_vectors_where_the_compiler_can_be_told(
    version: str, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_version", lambda command: version)
    for name, bits in (("avx512", None), ("avx2", 256)):
        flags = compiler.find_toolchain(private_environment(tmp_path, ("cc",)), TARGETS[name]).flags
        told = {flag for flag in flags if flag.startswith(("-mmove-max", "-mstore-max"))}
        assert told == ({f"-mmove-max={bits}", f"-mstore-max={bits}"} if is_told and bits else set())


@pytest.mark.parametrize("command", [("zig", "cc"), (sys.executable, "-m", "ziglang", "cc")])
def test_zig_has_other_names_for_instruction_sets(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_version", lambda command: "13")
    flags = {
        name: compiler.find_toolchain(private_environment(tmp_path, command), TARGETS[name]).flags
        for name in ("avx2", "neon")
    }
    assert "-march=x86_64_v3" in flags["avx2"] and "-march=generic" in flags["neon"]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86-64")
def test_compilers_know_the_instruction_sets(tmp_path: Path, command: tuple[str, ...]) -> None:
    for name in ("avx512", "avx2", "sse2"):
        compile_objects([unit()], private_environment(tmp_path, command), target=TARGETS[name])


@pytest.mark.parametrize(
    ("version", "is_told"),
    [
        ("gcc (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022 Free Software Foundation, Inc.", True),
        ("gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0\nCopyright (C) 2021 Free Software Foundation, Inc.", False),
        ("Debian clang version 14.0.6", False),
        ("clang version 18.1.8\nTarget: x86_64-pc-linux-gnu\nThread model: posix", True),
        ("clang version 22.1.8\nTarget: aarch64-unknown-linux5.10.0-gnu2.31.0\nThread model: posix", False),
    ],
)
def test_float16_is_kept_by_compilers_that_know_how(version: str, is_told: bool) -> None:
    told = compiler.Toolchain(("cc",), version, (), "")
    for text, flag in (("float x;", False), ("_Float16 x;", is_told)):
        command = told.compile_command(Path("x.c"), Path("x.o"), (), text)
        assert ("-fexcess-precision=16" in command) == flag


def test_what_is_done_meanwhile_is_done_once_and_its_error_comes_through(tmp_path: Path) -> None:
    done: list[int] = []
    chosen = private_environment(tmp_path)
    assert len(compile_objects([unit("f"), unit("g", 1)], chosen, meanwhile=lambda: done.append(1))) == 2
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        compile_objects([unit("f")], chosen, meanwhile=lambda: divmod(1, 0) and None)
