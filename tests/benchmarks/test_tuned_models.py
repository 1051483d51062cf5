"""Default against tuned: the arithmetic, the files, and a whole run on a small model with a short search."""

from __future__ import annotations

import json
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks import tuned_models
from benchmarks.paper_models import PaperModel
from benchmarks.tuned_models import Gain, exported, gain_row, gain_table, main
from tests.tuning.small_model import write_model
from treadle.bench.interleave import Times
from treadle.schedules.search.evolution import Evolution, Settings
from treadle.schedules.search.strategies import STRATEGIES
from treadle.tuning import tuner

GAIN = Gain("m", Times((4e-3, 6e-3, 8e-3), 1), Times((2e-3, 2e-3, 8e-3), 1), 1e-7)


def test_ratios_are_round_by_round() -> None:
    assert GAIN.ratios == (1.5, 2.0, 2.5)
    assert gain_row(GAIN) == {
        "model": "m", "default_ms": 6.0, "tuned_ms": 2.0, "ratio": 2.0, "ratio_quartiles": [1.5, 2.0, 2.5],
        "difference": 1e-7, "rounds": [[4.0, 2.0], [6.0, 2.0], [8.0, 8.0]],
    }  # fmt: skip


def test_the_table_ends_with_the_mean() -> None:
    screen = StringIO()
    Console(file=screen, width=120).print(gain_table([GAIN], 2))
    last = screen.getvalue().splitlines()[-2]
    assert "geometric mean" in last
    assert "2.000x" in last


def test_a_model_is_exported_with_its_weights(tmp_path: Path) -> None:
    """Another Python writes both files, or says on its own stderr why it cannot."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$3" = m ] && echo weights > "$4.data" && echo model > "$4"\n')
    python.chmod(0o755)
    path = exported("m", tmp_path / "onnx", str(python))
    assert path == tmp_path / "onnx" / "m.onnx"
    assert {each.name: each.read_text() for each in path.parent.iterdir()} == {
        "m.onnx": "model\n", "m.onnx.data": "weights\n",
    }  # fmt: skip
    assert exported("m", tmp_path / "onnx", "no such Python") == path
    with pytest.raises(SystemExit, match=r"cannot export other; put other\.onnx into .*, or see --exporter"):
        exported("other", tmp_path / "onnx", str(python))
    assert len(list(path.parent.iterdir())) == 2


def test_a_model_is_tuned_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = np.random.default_rng(0).standard_normal((20, 48)).astype(np.float32)
    monkeypatch.setattr(tuned_models, "PAPER_MODELS", {"small": PaperModel(lambda: None, "x", example)})
    monkeypatch.setitem(STRATEGIES, "evolution", partial(Evolution, settings=Settings(population=8, generations=1)))
    for name, value in (("MEASURED", 1), ("_ROUND_SECONDS", 0.1), ("_CONFIRM_SECONDS", 0.1)):
        monkeypatch.setattr(tuner, name, value)
    monkeypatch.setattr(tuned_models, "_BATCH_SECONDS", 0.001)
    write_model(tmp_path / "small.onnx")
    database, output = tmp_path / "db", tmp_path / "results"
    arguments = ["--models", "small", "--onnx", str(tmp_path), "--database", str(database), "--output", str(output)]
    status = main([*arguments, "--seconds", "4", "--rounds", "3"])
    (path,) = output.iterdir()
    written = json.loads(path.read_text())
    (row,) = written["results"]
    assert status == int(row["ratio"] < 1)
    assert len(row["rounds"]) == 3
    assert row["difference"] < 1e-5
    assert written["geometric_mean"] == pytest.approx(row["ratio"], rel=1e-3)
    (folder,) = database.iterdir()
    assert json.loads((folder / "machine.json").read_text())["commit"] == written["commit"]
    assert list(folder.glob("*.jsonl"))
    monkeypatch.setattr(tuned_models, "tune", None)
    assert main([*arguments, "--measure-only", "--rounds", "1", "--least", "1000"]) == 1


def test_the_default_side_may_be_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    example = np.random.default_rng(0).standard_normal((20, 48)).astype(np.float32)
    monkeypatch.setattr(tuned_models, "PAPER_MODELS", {"small": PaperModel(lambda: None, "x", example)})
    monkeypatch.setattr(tuned_models, "_BATCH_SECONDS", 0.001)
    write_model(tmp_path / "small.onnx")
    output, database = tmp_path / "results", tmp_path / "db"
    database.mkdir()
    arguments = ["--models", "small", "--onnx", str(tmp_path), "--database", str(database), "--measure-only"]
    arguments += ["--rounds", "3", "--output", str(output)]
    main([*arguments, "--against", str(tuned_models.ROOT)])
    (path,) = output.iterdir()
    written = json.loads(path.read_text())
    (row,) = written["results"]
    assert (len(row["rounds"]), row["difference"], written["against"]) == (3, 0.0, written["commit"])
    (tmp_path / "treadle.py").write_text("raise ImportError('an old version')")
    with pytest.raises(SystemExit, match=r"cannot compile or run small\.onnx: see above"):
        main([*arguments, "--against", str(tmp_path)])
    assert "an old version" in capfd.readouterr().err
