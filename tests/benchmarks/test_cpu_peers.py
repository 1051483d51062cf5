"""The race against peers: who is the best one, the ratios, and a whole run on a small model."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks import cpu_peers
from benchmarks.cpu_peers import Race, main, race_row, race_table
from benchmarks.paper_models import PaperModel
from tests.helpers.quick_bench import measure_briefly
from tests.tuning.small_model import write_model
from treadle.bench.interleave import Times
from treadle.bench.model import OWN, Benchmark, KernelTime
from treadle.bench.peaks import Launch, Peaks

TIMES = {OWN: Times((4e-3, 6e-3, 8e-3), 1), "slow": Times((9e-3, 9e-3, 9e-3), 1), "fast": Times((2e-3, 6e-3, 12e-3), 1)}
RACE = Race("m", Benchmark(TIMES, (KernelTime("k", (Launch("k", "", 1, 1),), 4e-3),), Peaks(2e11, 3e10), 2))


def test_the_best_peer_is_compared_round_by_round() -> None:
    assert RACE.best == "fast"
    assert RACE.ratios == (0.75, 1.0, 1.25)
    assert race_row(RACE) == {
        "model": "m", "best_peer": "fast", "ratio_quartiles": [0.75, 1.0, 1.25],
        "ms": {"treadle": [4.0, 6.0, 8.0], "slow": [9.0, 9.0, 9.0], "fast": [2.0, 6.0, 12.0]},
        "peak_gflops": 200.0, "peak_gb_s": 30.0, "kernels_us": {"k": 4000.0},
    }  # fmt: skip


def test_the_table_ends_with_the_mean() -> None:
    screen = StringIO()
    Console(file=screen, width=120).print(race_table([RACE, RACE], 2))
    last = screen.getvalue().splitlines()[-2]
    assert "geometric mean" in last
    assert "1.000" in last


def test_a_model_races(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = np.random.default_rng(0).standard_normal((20, 48)).astype(np.float32)
    measure_briefly(monkeypatch)
    monkeypatch.setattr(cpu_peers, "PAPER_MODELS", {"small": PaperModel(lambda: None, "x", example)})
    write_model(tmp_path / "small.onnx")
    places = ["--onnx", str(tmp_path), "--output", str(tmp_path / "results")]
    arguments = ["--models", "small", "--seconds", "0.02", *places]
    assert main([*arguments, "--least", "1e-9"]) == 0
    assert main([*arguments, "--least", "1e9"]) == 1
    assert main([*arguments, "--precision", "bf16", "--output", str(tmp_path / "narrow")]) == 0
    (narrow,) = json.loads(next((tmp_path / "narrow").iterdir()).read_text())["results"]
    assert 0 < narrow["errors"]["treadle"] < 0.1 and narrow["errors"]["onnxruntime"] == 0
    relaxed = ["--convolution", "winograd4", "--batch", "1", "2", "--threads", "1"]
    relaxed += ["--output", str(tmp_path / "relaxed")]
    write_model(tmp_path / "small-batch2.onnx", rows=40)
    assert main([*arguments, *relaxed]) == 0
    one, two = sorted((tmp_path / "relaxed").iterdir(), reverse=True)
    assert one.name.startswith("cpu_peers_winograd4_threads1-")
    assert two.name.startswith("cpu_peers_winograd4_batch2_threads1-")
    assert json.loads(one.read_text())["batch"] == 1
    written = json.loads(two.read_text())
    assert (written["batch"], written["convolution"], written["threads"]) == (2, "winograd4", 1)
    assert 0 < written["results"][0]["errors"]["treadle"] < 1e-5
    (path,) = (tmp_path / "results").iterdir()
    assert path.name.startswith("cpu_peers-")
    (row,) = json.loads(path.read_text())["results"]
    assert "onnxruntime" in row["ms"]
    assert row["kernels_us"]
