"""Real models compiled for ranges of shapes: every call agrees with the model's definition for the call's shapes.

The definition is imported for static shapes, and knows nothing of symbols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import treadle
from tests.models.agreement import Case
from tests.models.catalog import require_model
from treadle import Dim

Extent = Dim | int


@dataclass(frozen=True)
class Ranges:
    """A model's inputs with ranges, and some calls that every run makes, by the values of the symbols."""

    shapes: Mapping[str, Sequence[Extent]]
    calls: Sequence[Mapping[str, int]]

    @property
    def dims(self) -> list[Dim]:
        extents = [extent for shape in self.shapes.values() for extent in shape]
        return list(dict.fromkeys(extent for extent in extents if isinstance(extent, Dim)))

    def of_call(self, values: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        return {
            name: tuple(values[e.name] if isinstance(e, Dim) else e for e in shape)
            for name, shape in self.shapes.items()
        }


_TEXT = (Dim("batch", 1, 3), Dim("tokens", 1, 24))
RANGES: dict[str, Ranges] = {
    "minilm": Ranges(
        {"input_ids": _TEXT, "attention_mask": _TEXT},
        [{"batch": b, "tokens": t} for b, t in ((1, 1), (3, 24), (2, 13))],
    ),
    "mtcnn_pnet": Ranges(
        {"input_1": (Dim("n", 1, 2), Dim("h", 12, 60), Dim("w", 12, 80), 3)},
        [{"n": 1, "h": 12, "w": 12}, {"n": 2, "h": 60, "w": 80}, {"n": 1, "h": 43, "w": 61}],
    ),
    "ppocrv4_rec": Ranges({"x": (1, 3, 48, Dim("w", 32, 96))}, [{"w": 33}, {"w": 96}]),
    "ppocrv4_det": Ranges({"x": (1, 3, Dim("h", 32, 96, 32), Dim("w", 32, 128, 32))}, [{"h": 96, "w": 32}]),
}


def _compiled(name: str) -> treadle.CompiledModel:
    return treadle.compile(require_model(name).path(), shapes=RANGES[name].shapes, threads=2)


def _disagreements(name: str, model: treadle.CompiledModel, values: Mapping[str, int], folder: Path) -> list[str]:
    case = Case.of(name, folder, shapes=RANGES[name].of_call(values))
    return [f"{values}: {each}" for each in case.disagreements(model.run(case.inputs))]


def _drawn(dim: Dim, generator: np.random.Generator) -> int:
    return int(generator.integers(dim.least // dim.multiple, dim.greatest // dim.multiple + 1)) * dim.multiple


@pytest.mark.parametrize("name", RANGES)
def test_a_call_agrees(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with _compiled(name) as model:
        found = [each for call in RANGES[name].calls for each in _disagreements(name, model, call, tmp_path)]
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("name", RANGES)
def test_sixty_shapes_and_the_corners_agree(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    generator, dims = np.random.default_rng(5), RANGES[name].dims
    ends = product(*((dim.least, dim.greatest) for dim in dims))
    corners = [{dim.name: extent for dim, extent in zip(dims, each, strict=True)} for each in ends]
    drawn = [{dim.name: _drawn(dim, generator) for dim in dims} for _ in range(60)]
    with _compiled(name) as model:
        found = [each for call in [*corners, *drawn] for each in _disagreements(name, model, call, tmp_path)]
    assert found == []
