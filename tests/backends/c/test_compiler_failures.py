"""A C compiler that fails: the message has the cause, and what is accepted is the remedy of that cause."""

from __future__ import annotations

import platform
import shlex
from pathlib import Path

import pytest

import treadle
from tests.backends.c.toolchains import COMMANDS, private_environment
from tests.helpers.onnx_models import linear_model
from treadle.backends.c.compiler import Unit, build_library, compile_objects, failure, link
from treadle.errors import TreadleError
from treadle.target import TARGETS

UNIT = Unit("answer", "int answer(void) { return 42; }\n")
ROOM, MEMORY, COMPLETE = "more room in the folder for temporary files", "more free memory", "a complete compiler: "
ANOTHER, KNOWN, WHOLE = "another version of the compiler", "options that the compiler knows", "objects are whole"
LOGS = {
    "/tmp/x.c:9:1: fatal error: error writing to /tmp/ccA1b2.s: No space left on device": ROOM,
    "/tmp/ccA1.s: Assembler messages:\n/tmp/ccA1.s: Fatal error: can't write 90 bytes: 'No space left on device'": ROOM,
    "/usr/bin/ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status": ROOM,
    "error: unable to open output file 'x.o': 'Disk quota exceeded'": ROOM,
    "Cannot create temporary file in /tmp/: Read-only file system": "TMPDIR naming a folder that can be written",
    "gcc: fatal error: Killed signal terminated program cc1\ncompilation terminated.": MEMORY,
    "cc1: out of memory allocating 65536 bytes after a total of 1 bytes": MEMORY,
    "x.c:3:9: internal compiler error: Segmentation fault": ANOTHER,
    "cc1: error: bad value 'x86-64-v4' for '-march=' switch": "a compiler that knows -march=x86-64-v4",
    "error: unknown target CPU 'x86-64-v4'": "a compiler that knows -march=x86-64-v4",
    "gcc: error: unrecognized command-line option '-fno-such'; did you mean '-fno-sched'?": KNOWN,
    "clang: error: unknown argument: '-fno-such'": KNOWN,
    "x.c:1:10: fatal error: stdio.h: No such file or directory\n    1 | #include <stdio.h>": COMPLETE,
    "x.c:1:10: fatal error: 'sys/mman.h' file not found": COMPLETE,
    "gcc: fatal error: cannot execute 'cc1': execvp: No such file or directory": COMPLETE,
    "/usr/bin/ld: cannot find -lm: No such file or directory\ncollect2: error: ld returned 1 exit status": COMPLETE,
    "/usr/bin/ld: x.o: in function `f':\nx.c: undefined reference to `g'\ncollect2: error: ld returned 1": WHOLE,
    "x.c:7:3: error: unknown type name 'v4f'\n    7 |   v4f no_space_left_on_device; // out of memory": "C11 with GNU",
}


@pytest.mark.parametrize(("log", "accepted"), LOGS.items())
def test_each_cause_has_its_remedy(log: str, accepted: str) -> None:
    error = failure(["gcc", "-O3", "-march=x86-64-v4"], log, "matmul_3")
    assert error.where == "matmul_3" and accepted in str(error.accepted)
    assert any(line.strip() and line.strip() in error.message for line in log.splitlines())
    assert error.__notes__ == ["gcc -O3 -march=x86-64-v4", log]


def script(folder: Path, body: str) -> tuple[str]:
    """A compiler that answers to --version, and does what the shell's commands say."""
    path = folder / "cc"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "cc version 1" && exit 0\n{body}\n')
    path.chmod(0o755)
    return (str(path),)


def error_of(command: tuple[str, ...], folder: Path, target: str = "cpu", flags: tuple[str, ...] = ()) -> TreadleError:
    with pytest.raises(TreadleError) as caught:
        compile_objects([UNIT], private_environment(folder / "cache", command, flags), target=TARGETS[target])
    assert caught.value.where == "answer" and not list((folder / "cache").glob("objects/*/*"))
    return caught.value


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_an_option_that_compilers_do_not_know(command: tuple[str, ...], tmp_path: Path) -> None:
    error = error_of(command, tmp_path, flags=("-fno-such-option-anywhere",))
    assert "-fno-such-option-anywhere" in error.message and KNOWN in str(error.accepted)


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"zig"}))
@pytest.mark.skipif(platform.machine() != "x86_64", reason="a compiler for x86-64")
def test_an_instruction_set_of_another_architecture(name: str, tmp_path: Path) -> None:
    """zig calls the least processor of each architecture alike, and is no such case."""
    command = COMMANDS[name]
    assert "a compiler that knows -march=armv8-a" in str(error_of(command, tmp_path, "neon").accepted)


@pytest.mark.parametrize(
    ("body", "message", "accepted"),
    [
        ("kill -9 $$", "was ended by SIGKILL", MEMORY),
        ("exit 137", "was ended by SIGKILL", MEMORY),
        ("kill -25 $$", "was ended by SIGXFSZ", ROOM),
        ("kill -11 $$", "was ended by SIGSEGV", ANOTHER),
        ("exit 1", "failed: exit status 1", "C11 with GNU extensions"),
        ("exit 0", "reported success and wrote nothing", "TREADLE_CC or CC naming a C compiler"),
        ('for last; do :; done; : > "$last"', "reported success and wrote nothing", "TREADLE_CC or CC"),
    ],
)
def test_a_compiler_that_ends_otherwise(body: str, message: str, accepted: str, tmp_path: Path) -> None:
    error = error_of(script(tmp_path, body), tmp_path)
    assert message in error.message and accepted in str(error.accepted)


def test_messages_are_asked_for_in_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    assert "spoken: C" in error_of(script(tmp_path, 'echo "error: spoken: $LC_ALL" >&2; exit 1'), tmp_path).message


def emptying(folder: Path) -> tuple[str, ...]:
    """A compiler whose objects are well-formed and empty."""
    real = shlex.join(next(iter(COMMANDS.values())))
    return script(
        folder, f'case " $* " in *" -c "*) for o; do :; done; echo | {real} -x c -c - -o "$o";; *) {real} "$@";; esac'
    )


@pytest.mark.parametrize("unit", [UNIT, Unit("caller", "int unknown(void);\nint f(void) { return unknown(); }")])
def test_objects_that_are_not_whole_leave_the_cache(unit: Unit, tmp_path: Path) -> None:
    """A library without its interface, and one that calls what no object defines."""
    chosen = private_environment(tmp_path / "cache", emptying(tmp_path) if unit is UNIT else None)
    objects = compile_objects([unit], chosen)
    with pytest.raises(TreadleError, match=r"without the model's interface|undefined .*unknown"):
        link(objects, chosen, interface="treadle interface 1")
    assert not [path for path in (tmp_path / "cache").glob("[lo]*/*/*") if path.is_file()]


def test_a_model_of_empty_objects_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = linear_model(tmp_path / "m.onnx")
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TREADLE_CC", shlex.join(emptying(tmp_path)))
    with pytest.raises(TreadleError, match="wrote a library without the model's interface"):
        treadle.compile(model)
    assert not [path for path in (tmp_path / "cache").glob("[lmo]*/*/*") if path.suffix in (".o", ".so", "")]
    monkeypatch.setenv("TREADLE_CC", shlex.join(next(iter(COMMANDS.values()))))
    assert treadle.compile(model) is not None


def test_runtimes_that_flags_name_are_linked(tmp_path: Path) -> None:
    """-fsanitize adds calls to objects; what they call is added by the same flag where they are linked."""
    if "gcc" not in COMMANDS:
        pytest.skip("the libraries of sanitizers come with gcc")
    chosen = private_environment(tmp_path, COMMANDS["gcc"], ("-fsanitize=undefined",))
    library = build_library([Unit("shift", "int shift(int a, int b) { return a << b; }")], chosen)
    assert b"__ubsan_handle_shift" in library.read_bytes()
