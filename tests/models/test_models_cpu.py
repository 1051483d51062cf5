"""Whole models, compiled for the CPU, agree with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.random_weights import with_random_weights
from tests.models.agreement import NAMES, compare_on_cpu
from tests.models.catalog import require_model

THREADS = 2


@pytest.mark.parametrize("name", NAMES)
def test_a_model_agrees(name: str) -> None:
    pytest.importorskip("onnxruntime")
    model = require_model(name)
    results = compare_on_cpu(model.path(), model.sample_inputs(), THREADS)
    assert results and all(result.agrees for result in results), "; ".join(map(str, results))


@pytest.mark.parametrize("name", ["light_resnet50", "light_squeezenet"])
def test_a_light_model_agrees_with_random_weights(name: str, tmp_path: Path) -> None:
    """Their own weights are constant: an output that ignores where each weight belongs would not be noticed."""
    pytest.importorskip("onnxruntime")
    model = require_model(name)
    path = with_random_weights(model.path(), tmp_path / f"{name}.onnx", seed=1)
    results = compare_on_cpu(path, model.sample_inputs(), THREADS)
    assert results and all(result.agrees for result in results), "; ".join(map(str, results))
