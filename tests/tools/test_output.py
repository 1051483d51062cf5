"""`-o` of every command: files are replaced whole, links followed, and what is no regular file is written to."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.helpers.onnx_models import linear_model
from tests.helpers.waiting import HANGS
from treadle.errors import TreadleError
from treadle.support.output import output_stream
from treadle.tools import treadle_cli, treadle_opt

Command = Callable[[str], int]
"""Runs a command with this `-o`."""

TEXT = "func.func @f() {\n  func.return\n}\n"
NULL, FULL = os.makedev(1, 3), os.makedev(1, 7)


def opt(output: str) -> int:
    return treadle_opt.main(["in.mlir", "-o", output])


def draw(output: str) -> int:
    return treadle_cli.main(["map", "spatial(2) * repeat(2)", "-o", output])


COMMANDS: dict[str, tuple[Command, str]] = {"treadle-opt": (opt, "func.func @f"), "map": (draw, "<svg")}
"""How each command is run, and what its text holds."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("in.mlir").write_text(TEXT)
    Path("work").mkdir()
    return tmp_path


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> tuple[Command, str]:
    return COMMANDS[request.param]


def names(path: str) -> list[str]:
    return sorted(os.listdir(path))


def make_device(path: str, number: int) -> None:
    """A copy of one of the machine's: a fault in what is tested would cost the machine its own."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, number)
        os.close(os.open(path, os.O_WRONLY))
    except PermissionError:
        pytest.skip("only root makes devices")


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    message = capsys.readouterr().err
    assert message.count("\n") == 1, message
    return message


def test_a_dash_is_stdout(command: tuple[Command, str], capsys: pytest.CaptureFixture[str]) -> None:
    run, expected = command
    assert run("-") == 0
    assert expected in capsys.readouterr().out and not Path("-").exists()


def test_a_fifo_is_written_to(command: tuple[Command, str]) -> None:
    run, expected = command
    os.mkfifo("work/fifo.svg")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(Path("work/fifo.svg").read_text)
        assert run("work/fifo.svg") == 0
        assert expected in reading.result(timeout=HANGS)
    assert stat.S_ISFIFO(os.stat("work/fifo.svg").st_mode) and names("work") == ["fifo.svg"]


def test_a_device_is_written_to(command: tuple[Command, str]) -> None:
    run, _ = command
    make_device("work/null.svg", NULL)
    assert run("work/null.svg") == 0
    assert os.stat("work/null.svg").st_rdev == NULL and names("work") == ["null.svg"]


def test_a_device_without_room(command: tuple[Command, str], capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = command
    make_device("work/full.svg", FULL)
    assert run("work/full.svg") == 2
    assert "work/full.svg: cannot write: No space left on device" in complaint(capsys)


def test_a_pipe_by_its_descriptor(command: tuple[Command, str]) -> None:
    run, expected = command
    source, sink = os.pipe()
    with os.fdopen(source) as reader:
        assert run(f"/dev/fd/{sink}") == 0
        os.close(sink)
        assert expected in reader.read()


@pytest.mark.parametrize("target", ["old.svg", "new.svg"])
def test_a_link_is_followed(target: str, command: tuple[Command, str]) -> None:
    run, expected = command
    Path("elsewhere").mkdir()
    Path("elsewhere/old.svg").write_text("old")
    Path("work/link.svg").symlink_to(f"../elsewhere/{target}")
    assert run("work/link.svg") == 0
    assert Path("work/link.svg").is_symlink() and expected in Path("elsewhere", target).read_text()
    assert names("work") == ["link.svg"] and names("elsewhere") == sorted({"old.svg", target})


def test_a_file_is_replaced_whole_and_keeps_its_permissions(command: tuple[Command, str]) -> None:
    run, expected = command
    path = Path("work/out.svg")
    path.write_text("old")
    path.chmod(0o604)
    with path.open() as reader:
        assert run(str(path)) == 0
        assert reader.read() == "old"
    assert expected in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o604
    assert names("work") == ["out.svg"]


def test_a_new_file_has_the_permissions_of_the_umask(command: tuple[Command, str]) -> None:
    run, _ = command
    before = os.umask(0o027)
    try:
        assert run("work/out.svg") == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat("work/out.svg").st_mode) == 0o640


def test_owner_and_group_are_kept() -> None:
    Path("work/out.mlir").write_text("old")
    try:
        os.chown("work/out.mlir", 12345, 23456)
    except OSError:
        pytest.skip("only root gives files away")
    os.chmod("work/out.mlir", 0o2755)
    assert opt("work/out.mlir") == 0
    found = os.stat("work/out.mlir")
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 23456, 0o2755)


def test_the_longest_name_of_a_file(command: tuple[Command, str]) -> None:
    run, expected = command
    name = f"work/{'n' * 251}.svg"
    assert run(name) == 0
    assert expected in Path(name).read_text()


def test_a_failure_leaves_everything_as_it_was() -> None:
    Path("in.mlir").write_text("func.func")
    Path("work/out.mlir").write_text("old")
    assert opt("work/out.mlir") == 2 and opt("work/new.mlir") == 2
    assert Path("work/out.mlir").read_text() == "old" and names("work") == ["out.mlir"]


def test_after_a_failure_the_reader_of_a_fifo_sees_the_end() -> None:
    Path("in.mlir").write_text("func.func")
    os.mkfifo("work/fifo")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(Path("work/fifo").read_text)
        assert opt("work/fifo") == 2
        assert reading.result(timeout=HANGS) == ""


def test_the_file_that_stdout_goes_to_is_not_replaced() -> None:
    """`{ echo first; treadle-opt ... -o /dev/stdout; echo last; } > file` keeps all three."""
    script = (
        "import sys; from treadle.tools.treadle_opt import main; print('first');"
        "main(['in.mlir', '-o', '/dev/stdout']); print('last')"
    )
    with Path("work/log").open("a") as log:
        subprocess.run([sys.executable, "-c", script], stdout=log, check=True)
    lines = Path("work/log").read_text().splitlines()
    assert (lines[0], lines[-1]) == ("first", "last") and any("func.func @f" in line for line in lines)
    assert names("work") == ["log"]


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("work", "work: cannot write: Is a directory"),
        ("", "'': cannot write: not the name of a file"),
        ("work/", "'work/': cannot write: not the name of a file"),
        ("absent/out.svg", "absent/out.svg: cannot write: No such file or directory"),
        ("in.mlir/out.svg", "in.mlir/out.svg: cannot write: Not a directory"),
        ("loop.svg", "loop.svg: cannot write: Too many levels of symbolic links"),
        (f"work/{'n' * 256}.svg", "cannot write: File name too long"),
    ],
)
def test_what_cannot_be_written(
    output: str, reason: str, command: tuple[Command, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = command
    Path("loop.svg").symlink_to("loop.svg")
    assert run(output) == 2
    message = complaint(capsys)
    assert reason in message and "accepted: a file in a folder that can be written" in message
    assert names("work") == []


def test_a_file_that_may_not_be_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its folder may: a rename would succeed."""
    Path("work/out.mlir").write_text("old")
    Path("work/out.mlir").chmod(0o444)
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert opt("work/out.mlir") == 2
    assert "work/out.mlir: cannot write: Permission denied" in complaint(capsys)
    assert Path("work/out.mlir").read_text() == "old" and names("work") == ["out.mlir"]


def test_errors_of_the_block_are_its_own() -> None:
    with pytest.raises(FileNotFoundError), output_stream("work/out"):
        Path("absent").read_text()
    with pytest.raises(TreadleError, match="of the block"), output_stream("work/out") as stream:
        stream.write("half")
        raise TreadleError("of the block")
    assert names("work") == []


def test_a_picture_in_a_file_has_its_suffix(capsys: pytest.CaptureFixture[str]) -> None:
    assert draw("work/out.png") == 2
    assert "unknown format of a picture; accepted: a name that ends in .svg" in complaint(capsys)


def test_what_a_picture_leaves_out_is_not_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert treadle_cli.main(["map", "spatial(64)", "--limit", "4", "-o", "-"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("<svg") and captured.out.rstrip().endswith("</svg>") and captured.err


def test_a_link_to_a_compiled_model_is_followed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(folder / "cache"))
    model = str(linear_model(Path("m.onnx")))
    Path("models").mkdir()
    Path("work/link").symlink_to("../models")
    for _ in range(2):
        assert treadle_cli.main(["compile", model, "-o", "work/link"]) == 0
        assert Path("work/link").is_symlink() and "manifest.json" in names("models") and names("work") == ["link"]


def test_a_compiled_model_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(Path("m.onnx")))
    assert treadle_cli.main(["compile", model, "-o", "-"]) == 2
    assert "-o -: a compiled model is a folder; accepted: a folder; '-' (stdout) takes the IR" in complaint(capsys)
    assert treadle_cli.main(["compile", model, "--to", "graph", "-o", "-"]) == 0
    assert "graph.matmul" in capsys.readouterr().out and not Path("-").exists()
