"""The measurements' arithmetic, order and files, on a model of one product."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks import compile_time
from benchmarks.compile_time import measure_compile
from benchmarks.cpu_models import NAMES, latency_row, latency_table, main
from benchmarks.machine import cpu_model, describe_run
from benchmarks.measure import Latencies, compare, measure_model, relative_error
from benchmarks.result_files import write_results
from tests.helpers.onnx_models import linear_model
from tests.models.catalog import MODELS
from treadle.bench.model import OWN, installed_peers

SECONDS = {OWN: (1e-3, 3e-3, 4e-3), "slow": (9e-3, 9e-3, 9e-3), "fast": (2e-3, 9e-3, 4e-3)}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))


def test_medians_and_ratios_of_the_best_peer_round_by_round() -> None:
    latencies = Latencies("m", SECONDS, 0.0)
    assert (latencies.median(OWN), latencies.best, latencies.median("fast")) == (3e-3, "fast", 4e-3)
    assert latencies.ratio == pytest.approx(2.0) and latencies.ratio_quartiles == pytest.approx((1.5, 2.0, 2.5))
    first = {side: each[:1] for side, each in SECONDS.items()}
    assert Latencies("m", first, 0.0).ratio_quartiles == pytest.approx((2.0, 2.0, 2.0))


def test_all_sides_take_turns() -> None:
    calls: list[str] = []
    array = np.ones(2, np.float32)

    def side(name: str) -> list[np.ndarray]:
        calls.append(name)
        return [array]

    sides = {OWN: lambda: side("a"), "peer": lambda: side("b"), "other": lambda: {"y": side("c")[0]}}
    measured = compare("m", sides, rounds=2, warmups=1)
    assert calls == ["a", "b", "c"] * 4 and measured.error == 0.0
    assert {each: len(taken) for each, taken in measured.seconds.items()} == dict.fromkeys(sides, 2)


def test_errors_are_relative_to_the_largest_value() -> None:
    expected = np.array([0.0, -4.0], np.float32)
    assert relative_error([expected + np.float32(1)], [expected]) == 0.25
    assert relative_error([np.zeros(2)], [np.zeros(2)]) == 0.0


def test_a_model_is_measured_and_shown(tmp_path: Path) -> None:
    inputs = {"x": np.ones((2, 8), np.float32)}
    path = linear_model(tmp_path / "m.onnx", rows="batch")
    peers = list(installed_peers())
    measured = measure_model("tiny", path, inputs, peers, threads=2, rounds=2, warmups=1)
    assert "onnxruntime" in peers and list(measured.seconds) == [OWN, *peers]
    assert measured.error < 1e-5 and all(each > 0 for taken in measured.seconds.values() for each in taken)
    screen = StringIO()
    Console(file=screen, width=120).print(latency_table([measured], 2))
    assert all(text in screen.getvalue() for text in ("tiny", "2 threads", "geometric mean", *peers))


def test_results_are_written_with_their_circumstances(tmp_path: Path) -> None:
    circumstances = describe_run()
    path = write_results("cpu", circumstances, [latency_row(Latencies("m", SECONDS, 1e-6))], tmp_path)
    content = json.loads(path.read_text())
    assert {"date", "commit", "cpu", "cores", "compiler", "versions", "results"} <= content.keys()
    (row,) = content["results"]
    assert (row["ratio"], row["best_peer"], row["ms"][OWN]) == (2.0, "fast", [1.0, 3.0, 4.0])
    assert path.name == f"cpu-{content['date'][:10]}.json"


def test_compilation_is_measured_cold_and_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by their times, which other programs may turn round: by whether the cache knows the model."""
    known: list[bool] = []

    def run(command: Sequence[str]) -> float:
        cache = Path(next(word for word in command if word.startswith("TREADLE_CACHE_DIR=")).partition("=")[2])
        known.append(any((cache / "models").glob("*")))
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return float(len(known))

    monkeypatch.setattr(compile_time, "_seconds", run)
    times = measure_compile("tiny", linear_model(tmp_path / "m.onnx"), {"x": (2, 8)}, "cpu")
    assert (known, times.cold, times.warm) == ([False, True], 1.0, 2.0)


def test_the_measured_models_are_in_the_catalog() -> None:
    assert set(NAMES) <= MODELS.keys()


def test_a_processor_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("model name\t: Some CPU\nflags\t\t: fpu avx2\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Some CPU avx2"
    assert cpu_model(tmp_path / "none")


def test_unknown_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--models", "gpt5"])
    assert "choose from" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--rounds", "0"])
