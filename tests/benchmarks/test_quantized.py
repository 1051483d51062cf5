"""The measurement of quantised models: a whole run on one of the catalog's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.quantized import main
from tests.helpers.quick_bench import measure_briefly
from tests.models.catalog import require_model


def test_a_model_is_quantised_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_briefly(monkeypatch)
    require_model("minilm")
    arguments = ["--models", "minilm", "--seconds", "0.02", "--output", str(tmp_path)]
    assert main([*arguments, "--least", "1e-9"]) == 0
    (path,) = tmp_path.iterdir()
    (row,) = json.loads(path.read_text())["results"]
    assert set(row["ms"]) == {"treadle", "treadle f32", "onnxruntime", "onnxruntime f32"}
    errors = row["errors"]
    # Not ONNX Runtime's: its sums of two products of bytes saturate where there is no VNNI.
    assert errors["treadle"] < 1e-4 < errors["onnxruntime f32"]
