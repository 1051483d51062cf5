"""Inputs that are fixed to values: in Python, on the command line, in the cache, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, parser

import treadle
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model
from treadle.tools.treadle_cli import main
from treadle.tools.treadle_opt import main as opt

_HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
DETECTOR = """g (float[1, n] x, int64 sr) => (float[1, m] y) <int64 wide = {16000}, int64[1] axis = {1}> {
  is_wide = Equal(sr, wide)
  y = If (is_wide) <
    then_branch = a () => (float[1, p] u) {
      halves = MaxPool<kernel_shape=[2], strides=[2]>(rows)
      u = Squeeze(halves, axis)
    },
    else_branch = b () => (float[1, q] v) { v = Relu(x) }
  >
}""".replace("is_wide = ", "rows = Unsqueeze(x, axis)\n  is_wide = ")
"""As voice detectors have it: what the rate decides are shapes."""
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)


def _model(text: str = DETECTOR) -> ModelProto:
    return parser.parse_model(_HEADER + text)


@pytest.fixture
def path(tmp_path: Path) -> str:
    onnx.save(_model(), tmp_path / "detector.onnx")
    return str(tmp_path / "detector.onnx")


@pytest.mark.parametrize("rate", [16000, 8000])
def test_a_constant_decides_a_branch(rate: int) -> None:
    session = onnxruntime.InferenceSession(_model().SerializeToString())
    (expected,) = session.run(None, {"x": X, "sr": np.array(rate)})
    with treadle.compile(_model(), shapes={"x": (1, 8)}, constants={"sr": rate}) as model:
        assert [tensor.name for tensor in model.inputs] == ["x"]
        (result,) = model(X)  # the cache keeps both rates apart
    np.testing.assert_array_equal(result, np.asarray(expected))


def test_every_command_takes_a_constant(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [path, "--shape", "x=1,8", "--input", "sr=16000"]
    assert main(["check", *given]) == 0
    assert main(["run", *given, "--check"]) == 0
    assert "y: float32[1, 4]" in capsys.readouterr().out
    assert main(["compile", *given, "-o", str(tmp_path / "compiled")]) == 0
    assert main(["compile", *given, "--to", "import", "-o", "-"]) == 0
    assert "sr" not in capsys.readouterr().out
    assert main(["bench", *given, "--seconds", "1", "--peers", "onnxruntime"]) == 0
    assert main(["bisect", *given, "-o", str(tmp_path / "bisected")]) == 0
    assert main(["schedules", *given]) == 0
    assert main(["tune", *given, "--database", str(tmp_path / "tuned"), "--dry-run"]) == 0
    assert opt([*given, "--to", "import"]) == 0


def test_numbers_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "g (float[3] x, float[3] w, bool[1] c) => (float[3] y) { z = Mul(x, w)\n y = Where(c, z, x) }"
    onnx.save(_model(text), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array([1, 2, 3], np.float32))
    given = [str(tmp_path / "m.onnx"), "--input", f"x={tmp_path / 'x.npy'}", "--input", "w=0.5,-1,2e0"]
    for word, least in (("true", "-2"), ("0", "1")):
        assert main(["run", *given, "--input", f"c={word}", "--check"]) == 0
        assert f"y: float32[3] from {least} to " in capsys.readouterr().out


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such input": ({"rate": 1}, r"constants: there is no input 'rate'; accepted: x, sr"),
    "shape": ({"sr": [1, 2]}, r"constants\['sr'\]: the value has the shape \[2\]; accepted: the shape \[\]"),
    "rank": ({"x": np.ones(4)}, r"constants\['x'\]: the value has the shape \[4\]; accepted: the shape \[1, n\]"),
    "fraction": ({"sr": 0.5}, r"constants\['sr'\]: 0.5 is no value of int64; accepted: whole numbers from -9223"),
    "range": ({"x": [[1e300]]}, r"constants\['x'\]: 1e\+300 is no value of float32; accepted: numbers within"),
    "text": ({"sr": "16k"}, r"constants\['sr'\]: the value is an array of <U3; accepted: a number, or an array of"),
    "ragged": ({"x": [[1], [1, 2]]}, r"constants\['x'\]: the value is no array: .*; accepted: a number, or an array"),
    "name": ({1: 1}, r"constants: 1 is no name of an input; accepted: a dict such as"),  # pyright: ignore
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_constants(name: str) -> None:
    constants, message = REFUSED[name]
    with pytest.raises(TreadleError, match=message):
        treadle.compile(_model(), shapes={"n": 8}, constants=constants)


def test_refused_arguments_beside_constants() -> None:
    with pytest.raises(TreadleError, match="constants is a list; accepted: a dict"):
        treadle.compile(_model(), constants=[1])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TreadleError, match="input 'sr' is a constant, which has its own shape; accepted: no shape"):
        treadle.compile(_model(), shapes={"sr": (), "x": (1, 8)}, constants={"sr": 1})
    module = import_model(_model().SerializeToString(), {"x": (1, 8)}, {"sr": 1})
    with pytest.raises(TreadleError, match=r"constants are given for a module, .* accepted: no constants"):
        treadle.compile(module, constants={"sr": 1})


def test_refused_words(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(run: Callable[[list[str]], int], words: list[str], message: str) -> None:
        assert run(words) == 2
        assert re.search(message, capsys.readouterr().err)

    shape = ["--shape", "x=1,8"]
    refused(
        main, ["check", path, *shape, "--input", "sr=16k"], r"--input sr: '16k' is no number; accepted: a value that"
    )
    refused(
        opt, [path, *shape, "--input", "sr"], "cannot read 'sr'; accepted: NAME=FILE.npy, or for a constant NAME=16"
    )
    refused(main, ["run", path, *shape, "--input", "sr=1", "--input", "sr=2"], "two arrays for input 'sr'")
    assert main(["compile", path, *shape, "--input", "sr=16000", "-o", str(tmp_path / "c")]) == 0
    capsys.readouterr()
    refused(
        main, ["run", str(tmp_path / "c"), "--input", "sr=1"], "constant, for a model that is compiled; accepted: the"
    )
    refused(
        main, ["bench", str(tmp_path / "c"), "--input", "sr=1"], "constant, for a model that is compiled; accepted: t"
    )
