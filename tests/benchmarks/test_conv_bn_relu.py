"""ResNet-50's convolutions by themselves: which they are, that all sides compute them, and what is written."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks import conv_bn_relu
from benchmarks.conv_bn_relu import LAYERS, TUNED, Layer, Measured, main, means_of, row_of, table_of, totals_of
from treadle.bench.interleave import Times
from treadle.bench.model import OWN

MEASURED = Measured(
    LAYERS["3x3-512-7"],
    {
        OWN: Times((4e-3, 4e-3), 1), TUNED: Times((2e-3, 2e-3), 1),
        "onnxruntime": Times((6e-3, 6e-3), 1), "openvino": Times((3e-3, 5e-3), 1),
    },
    {OWN: 1e-7, "onnxruntime": 2e-6},
)  # fmt: skip


def test_the_layers_are_those_of_resnet50() -> None:
    """53 convolutions of 25.5 million weights less those of the last product, and 4.09 billion multiplications."""
    assert len(LAYERS) == 23
    assert sum(each.count for each in LAYERS.values()) == 53
    weights = [each.count * each.filters * each.channels * each.kernel**2 for each in LAYERS.values()]
    assert sum(weights) == 23_454_912
    pixels = [(each.size // each.stride) ** 2 for each in LAYERS.values()]
    assert sum(a * b for a, b in zip(weights, pixels, strict=True)) == 4_087_136_256
    assert LAYERS["3x3-256-28-s2"] == Layer(256, 28, 256, 3, 2)


def test_ratios_and_sums() -> None:
    assert MEASURED.best_peer == "openvino"
    assert means_of([MEASURED]) == {OWN: 1.0, TUNED: 2.0}
    assert totals_of([MEASURED]) == {OWN: 8e-3, TUNED: 4e-3, "onnxruntime": 12e-3, "openvino": 8e-3}
    assert row_of(MEASURED)["ms"] == {
        OWN: [4.0, 4.0], TUNED: [2.0, 2.0], "onnxruntime": [6.0, 6.0], "openvino": [3.0, 5.0],
    }  # fmt: skip


def test_the_table_ends_with_the_sums() -> None:
    screen = StringIO()
    Console(file=screen, width=150).print(table_of([MEASURED], 2))
    lines = [line.replace(" ", "") for line in screen.getvalue().splitlines()]
    assert "│3x3-512-7│2│4.000│2.000│6.000│4.000│1.000│2.000│2e-06│" in lines
    assert lines[-2] == "│sum,geometricmean│2│8.00│4.00│12.00│8.00│1.000│2.000││"


@pytest.mark.parametrize("layer", [Layer(3, 9, 8, 7, 2), Layer(8, 6, 5, 1, 2, 3)], ids=lambda layer: layer.name)
def test_all_sides_compute_a_layer(layer: Layer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, written = run(layer, tmp_path, monkeypatch, trials=0)
    assert row["ms"].keys() == row["errors"].keys() == {OWN, *written["peers"]}
    limit = layer.channels * layer.kernel**2 * float(np.finfo(np.float32).eps)
    assert all(error <= limit for error in row["errors"].values())


def test_a_layer_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, written = run(Layer(4, 7, 4, 3), tmp_path, monkeypatch, trials=1)
    assert row["errors"].keys() == {OWN, TUNED, *written["peers"]}
    assert row["errors"][TUNED] <= 4 * 3**2 * float(np.finfo(np.float32).eps)
    assert written["geometric_means"].keys() == {OWN, TUNED}


def run(layer: Layer, folder: Path, monkeypatch: pytest.MonkeyPatch, trials: int) -> tuple[Any, Any]:
    """The row of a layer, and all that is written."""
    monkeypatch.setattr(conv_bn_relu, "LAYERS", {layer.name: layer})
    monkeypatch.setattr(conv_bn_relu, "_BATCH_SECONDS", 1e-3)
    words = ["--layers", layer.name, "--rounds", "2", "--threads", "1", "--output", str(folder)]
    assert main([*words, "--trials", str(trials), "--seconds", "2"]) == 0
    (path,) = folder.iterdir()
    written = json.loads(path.read_text())
    (row,) = written["results"]
    return row, written
