"""Whole models on a real GPU agree with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

import treadle
from tests.helpers.random_weights import with_random_weights
from tests.models.agreement import NAMES
from tests.models.catalog import require_model
from treadle.tools.oracle import compare, reference_outputs, tolerance

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", NAMES)
def test_a_model_agrees_with_onnx_runtime(name: str, tmp_path: Path) -> None:
    path = require_model(name).path()
    if name.startswith("light_"):
        path = with_random_weights(path, tmp_path / f"{name}.onnx")
    inputs = require_model(name).sample_inputs()
    shapes = {input: array.shape for input, array in inputs.items()}
    model = treadle.compile(path, "cuda", shapes)
    outputs = model.run(inputs)
    model.close()
    expected = reference_outputs(path, inputs, list(outputs))
    accepted = tolerance(path, shapes)
    results = [compare(output, outputs[output], expected[output], accepted) for output in outputs]
    assert [str(result) for result in results if not result.agrees] == []
