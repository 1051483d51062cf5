"""Peak memory beside ONNX Runtime's: the ratio, the table, and a whole run on a small model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import memory
from benchmarks.memory import Peak, main
from benchmarks.paper_models import PaperModel
from tests.tuning.small_model import write_model
from treadle.errors import TreadleError

MEBIBYTE = 2**20


def test_the_ratio_is_treadles_part() -> None:
    assert Peak("m", 30 * MEBIBYTE, 40 * MEBIBYTE).ratio == 0.75


def test_processes_of_both_sides_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = np.random.default_rng(0).standard_normal((20, 48)).astype(np.float32)
    monkeypatch.setattr(memory, "PAPER_MODELS", {"small": PaperModel(lambda: None, "x", example)})
    write_model(tmp_path / "small.onnx")
    arguments = ["--models", "small", "--onnx", str(tmp_path), "--output", str(tmp_path / "results"), "--most", "1e-9"]
    assert main(arguments) == 1
    (path,) = (tmp_path / "results").iterdir()
    written = json.loads(path.read_text())
    (row,) = written["results"]
    assert min(row["treadle"], row["onnxruntime"]) > 10 * MEBIBYTE
    # A process with a model is one with the library, and more.
    assert row["treadle"] > written["libraries"]["treadle"]
    assert row["onnxruntime"] > written["libraries"]["onnxruntime"]
    assert "small" in capsys.readouterr().out


def test_a_process_that_fails_is_an_error() -> None:
    with pytest.raises(TreadleError, match="a process that measures memory failed: ValueError: no"):
        memory._peak("raise ValueError('no')")  # pyright: ignore[reportPrivateUsage]
