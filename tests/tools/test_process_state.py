"""The tools run inside of other programs: they leave the process as they found it."""

from __future__ import annotations

import locale
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import Builtin, IntegerType
from xdsl.ir import Attribute
from xdsl.utils.diagnostic import Diagnostic
from xdsl.utils.exceptions import VerifyException

from tests.helpers.onnx_models import linear_model
from tests.helpers.waiting import eventually
from treadle.tools import treadle_cli, treadle_opt


def process_state() -> dict[str, Any]:
    """What a program shares with the tools that it calls."""
    umask = os.umask(0o22)
    os.umask(umask)
    return {
        "attribute verification": Attribute.__post_init__,
        "coloured diagnostics": Diagnostic.colored,
        "registered types": tuple(Builtin.attributes),
        "recursion limit": sys.getrecursionlimit(),
        "warnings": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "environment": dict(os.environ),  # noqa: TID251  no option: it is only compared
        "folder": os.getcwd(),
        "umask": umask,
        "streams": (sys.stdin, sys.stdout, sys.stderr, sys.stderr.closed),
        "hooks": (sys.excepthook, threading.excepthook, sys.displayhook),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "locale": locale.setlocale(locale.LC_ALL),
        "numpy": (np.geterr(), np.get_printoptions()),
    }


TASKS = "func.func @f(%x: i32) -> i32 {\n  func.return %x : i32\n}\n"

Tool = Callable[[list[str]], int]
RUNS: list[tuple[Tool, list[str], int]] = [
    (treadle_opt.main, ["tasks.mlir", "--disable-verify"], 0),
    (treadle_opt.main, ["tasks.mlir", "--syntax-highlight"], 0),
    (treadle_opt.main, ["tasks.mlir", "--disable-verify", "--syntax-highlight", "-o", "out.mlir"], 0),
    (treadle_opt.main, ["broken.mlir", "--disable-verify", "--syntax-highlight"], 2),
    (treadle_opt.main, ["tasks.mlir", "--disable-verify", "-p", "no-such-pass"], 2),
    (treadle_opt.main, ["m.onnx", "--disable-verify", "--pipeline", "sm_80", "-t", "cuda", "--trace", "trace"], 0),
    (treadle_cli.main, ["run", "m.onnx", "--check"], 0),
    (treadle_cli.main, ["run", "m.onnx", "--device", "emulator", "--sanitize"], 0),
    (treadle_cli.main, ["check", "m.onnx"], 0),
    (treadle_cli.main, ["map", "spatial(2) * repeat(2)", "-o", "map.svg"], 0),
]


@pytest.mark.parametrize(("tool", "arguments", "status"), RUNS, ids=[" ".join(words) for _, words, _ in RUNS])
def test_a_tool_leaves_the_process_as_it_was(
    tool: Tool, arguments: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    linear_model(tmp_path / "m.onnx")
    (tmp_path / "tasks.mlir").write_text(TASKS)
    (tmp_path / "broken.mlir").write_text("func.func")
    before, threads = process_state(), set(threading.enumerate())
    assert tool(arguments) == status
    after = process_state()
    assert {what: value for what, value in after.items() if value != before[what]} == {}
    assert eventually(lambda: set(threading.enumerate()) <= threads), "threads that go on"


def test_attributes_are_verified_after_a_run_without_verification(tmp_path: Path) -> None:
    source = tmp_path / "tasks.mlir"
    source.write_text(TASKS)
    assert treadle_opt.main([str(source), "--disable-verify", "-o", str(tmp_path / "out.mlir")]) == 0
    with pytest.raises(VerifyException):
        IntegerType(-1)


def test_runs_without_verification_that_overlap(tmp_path: Path) -> None:
    source = tmp_path / "tasks.mlir"
    source.write_text(TASKS)

    def run(number: int) -> None:
        for _ in range(5):
            treadle_opt.main([str(source), "--disable-verify", "-o", str(tmp_path / f"{number}.mlir")])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(VerifyException):
        IntegerType(-1)


def test_a_reader_that_leaves_ends_the_tool_quietly(tmp_path: Path) -> None:
    """As `| head` does. The caller's stderr stays open, and nothing is said about a pipe when the process ends."""
    (tmp_path / "tasks.mlir").write_text(TASKS)
    source, sink = os.pipe()
    os.close(source)
    script = "import sys; from treadle.tools import treadle_opt as t; print(t.main(sys.argv[1:]), file=sys.stderr)"
    command = [sys.executable, "-c", script, str(tmp_path / "tasks.mlir")]
    with os.fdopen(sink, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "2\n")
