"""Names of a stranger's model that hold escape sequences: no tool prints them as they are."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import treadle
from tests.helpers.onnx_models import save_model, value
from treadle.errors import TreadleError
from treadle.support.output import escaped_output, unescaped
from treadle.tools.treadle_cli import main

BAD = "y\x1b]0;title\x07\x1b[2J\x9b31m\u202e"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    nodes = [
        helper.make_node("Relu", [f"x{BAD}"], ["h"], name=f"first{BAD}"),
        helper.make_node("Exp", ["h"], [BAD], name=f"second{BAD}"),
    ]
    inputs, outputs = [value(f"x{BAD}", [2, "n"])], [value(BAD, [2, "n"])]
    return str(save_model(tmp_path_factory.mktemp("model") / "m.onnx", nodes, inputs, outputs))


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"], ["run", "--check"], ["run", "--input", "q=none.npy"], ["check"], ["check", "--nodes"],
        ["check", "--explain-fusion"], ["compile", "--to", "fuse", "-o", "-"], ["schedules"],
        ["run", "--target", "sm_80", "--device", "emulator", "--profile"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [["--shape", "n=3"], []])
def test_no_tool_prints_escape_sequences(
    arguments: list[str], shape: list[str], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([arguments[0], model, *arguments[1:], *shape])
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert printed and not set(printed) & set("\x1b\x07\x9b\u202e")


def test_names_are_told_with_their_characters_escaped(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, "--shape", "n=3"]) == 0
    assert r"y\x1b]0;title\x07\x1b[2J\x9b31m\u202e: float32[2, 3]" in capsys.readouterr().out


def test_an_error_has_no_escape_sequences(model: str) -> None:
    with treadle.compile(model, shapes={"n": 3}) as compiled, pytest.raises(TreadleError) as caught:
        compiled(np.zeros((2, 4), np.float32))
    assert r"xy\x1b]0;title" in str(caught.value) and "\x1b" not in str(caught.value)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        ("\x1b[38;5;8mgrey\x1b[m", "\x1b[38;5;8mgrey\x1b[m"),
        ("\x1b[8minvisible", "\\x1b[8minvisible"),
        ("\x1b[2J\tx\r\n", "\\x1b[2J\tx\\r\n"),
    ],
)
def test_a_terminal_gets_colours(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with escaped_output(), escaped_output():
        print(text, end="")
        assert unescaped(sys.stdout) is terminal
    assert sys.stdout is terminal and terminal.getvalue() == shown


def test_streams_are_put_back(tmp_path: Path) -> None:
    before = sys.stdout, sys.stderr
    assert main(["run", str(tmp_path / "none.onnx")]) == 2
    assert (sys.stdout, sys.stderr) == before
