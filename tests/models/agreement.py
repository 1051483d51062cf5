"""The models that must agree with ONNX Runtime, and the question whether one does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

import treadle
from treadle.tools.oracle import Comparison, compare, reference_outputs, tolerance

Array = NDArray[Any]

NAMES = (
    "ppocrv4_rec",
    "ppocrv4_det",
    "ppocr_cls",
    "ddddocr_det",
    "minilm",
    "light_resnet50",
    "light_squeezenet",
)
"""Models of the catalog that every target compiles as a whole."""


def compare_on_cpu(path: Path, inputs: Mapping[str, Array], threads: int) -> list[Comparison]:
    """Each output of the model compiled for the cpu beside ONNX Runtime's, as `treadle run --check` compares them."""
    shapes = {name: array.shape for name, array in inputs.items()}
    model = treadle.compile(path, "cpu", shapes, threads=threads)
    outputs = model.run(inputs)
    model.close()
    expected = reference_outputs(path, inputs, [tensor.name for tensor in model.outputs])
    accepted = tolerance(path, shapes)
    return [compare(name, outputs[name], expected[name], accepted) for name in expected]
