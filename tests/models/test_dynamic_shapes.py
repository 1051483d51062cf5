"""Real models compiled for ranges of shapes: every call agrees with the model's definition for the call's shapes.

The definition is imported for static shapes, and knows nothing of symbols. Every run compiles the models with fewer
layers (`tests/models/shortened.py`), `make slow-test` whole ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import treadle
from tests.models.agreement import Case
from tests.models.catalog import require_model
from tests.models.ranges import QUICK, RANGES, Ranges
from tests.models.shortened import REPEATED, STARTS, shortened
from treadle import Dim
from treadle.tools.oracle import Definition

Array = NDArray[Any]


def _inputs(name: str, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Array]:
    if name in STARTS and STARTS[name] in shapes:
        return {each: np.random.default_rng(0).standard_normal(shape, np.float32) for each, shape in shapes.items()}
    return require_model(name).with_shapes(shapes).sample_inputs()


def _disagreements(name: str, path: Path, ranges: Ranges, calls: Iterable[Mapping[str, int]]) -> list[str]:
    pytest.importorskip("onnxruntime")
    found: list[str] = []
    with treadle.compile(path, shapes=ranges.shapes, threads=2) as model:
        for values in calls:
            inputs = _inputs(name, ranges.of_call(values))
            definition = Definition.of_file(path, inputs)
            case = Case(path, inputs, definition, definition.outputs())
            found += [f"{values}: {each}" for each in case.disagreements(model.run(inputs))]
    return found


def _drawn(dim: Dim, generator: np.random.Generator) -> int:
    return int(generator.integers(dim.least // dim.multiple, dim.greatest // dim.multiple + 1)) * dim.multiple


@pytest.mark.parametrize("name", QUICK)
def test_a_call_agrees(name: str, tmp_path: Path) -> None:
    path = shortened(name, tmp_path) if name in REPEATED else require_model(name).path()
    assert _disagreements(name, path, QUICK[name], QUICK[name].calls) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", RANGES)
def test_sixty_shapes_and_the_corners_agree(name: str) -> None:
    generator, dims = np.random.default_rng(5), RANGES[name].dims
    ends = product(*((dim.least, dim.greatest) for dim in dims))
    corners = [{dim.name: extent for dim, extent in zip(dims, each, strict=True)} for each in ends]
    drawn = [{dim.name: _drawn(dim, generator) for dim in dims} for _ in range(60)]
    assert _disagreements(name, require_model(name).path(), RANGES[name], [*corners, *drawn]) == []
