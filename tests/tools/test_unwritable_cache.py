"""Commands where the cache cannot be written: they work in a temporary folder, and say so once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

import treadle
from tests.helpers.onnx_models import linear_model
from treadle.tools import treadle_opt
from treadle.tools.treadle_cli import main

WEIGHTS = np.random.default_rng(0).standard_normal((8, 400)).astype(np.float32)
"""More than are written into the text of the IR."""

pytestmark = pytest.mark.filterwarnings("default::treadle.errors.TreadleWarning")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    return str(linear_model(tmp_path / "m.onnx", weights=WEIGHTS))


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["check"],
        ["check", "--memory"],
        ["run", "--target", "sm_80", "--device", "emulator"],
        ["compile", "--target", "sm_80", "-o"],
    ],
)
def test_commands_work_and_warn_once(
    arguments: list[str], model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = [str(tmp_path / "output")] if arguments[-1] == "-o" else []
    assert main([arguments[0], model, *arguments[1:], *output]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(f"treadle: warning: the cache {tmp_path / 'file' / 'cache'} is not used, but ")
    assert captured.err.count("\n") == 1 and "Not a directory" in captured.err
    if arguments[0] == "check":
        assert "2 of 2 nodes are supported" in captured.out


def test_treadle_opt_works(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert treadle_opt.main([model, "--to", "schedule", "-t", "mlir"]) == 0
    captured = capsys.readouterr()
    assert "#graph.blob" in captured.out and captured.err.count("\n") == 1 and "warning" in captured.err


@pytest.mark.parametrize("cached", [True, False])
def test_a_model_is_compiled_and_rebuilt(cached: bool, model: str, tmp_path: Path) -> None:
    x = np.ones((2, 8), np.float32)
    with pytest.warns(UserWarning, match="is not used") as warned:
        compiled = treadle.compile(model, cached=cached)
        compiled.save(tmp_path / "saved")
        (y,) = treadle.load(tmp_path / "saved", rebuild=True)(x)
    np.testing.assert_array_equal(compiled(x)[0], y)
    assert len(warned) == 1 and compiled.folder.is_relative_to(tmp_path / "tmp")
