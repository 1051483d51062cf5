"""The models that must agree with their definitions, and the question whether one does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import treadle
from tests.helpers.random_weights import with_random_weights
from tests.models.catalog import require_model
from treadle.target.options import Precision
from treadle.tools.oracle import Comparison, Definition, Expected, compare_all, compare_reference

Array = NDArray[Any]

NAMES = (
    "ppocrv4_rec",
    "ppocrv4_det",
    "ppocr_cls",
    "ddddocr_det",
    "minilm",
    "mtcnn_pnet",
    "mtcnn_rnet",
    "mtcnn_onet",
    "light_resnet50",
    "light_squeezenet",
)
"""Models of the catalog that every target compiles as a whole."""

SMALLER: dict[str, dict[str, tuple[int, ...]]] = {
    "ppocrv4_rec": {"x": (1, 3, 48, 152)},
    "ppocrv4_det": {"x": (1, 3, 160, 160)},
}
"""Of the largest inputs of every run about half of each side: the same templates choose the kernels, and the limits of
a quarter of the elements are computed. At the catalog's sizes they are slow tests."""
QUICK_ON_GPU: tuple[str, dict[str, tuple[int, ...]]] = ("ppocr_cls", {"x": (1, 3, 48, 96)})
"""The model that every run compiles to cubins, emulates and mutates, at half its width. Its artifact is the same in all
of these tests, so that the run's cache gives it to all but the first."""


@dataclass(frozen=True)
class Case:
    """A model of the catalog with its sample inputs, and what its outputs must be."""

    path: Path
    inputs: Mapping[str, Array]
    definition: Definition
    expected: Expected

    @classmethod
    def of(
        cls,
        name: str,
        folder: Path,
        precision: Precision = "f32",
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Case:
        """The model of that name, perhaps with other shapes of inputs than the catalog's. The weights of a light model
        are constant: it gets random ones, in a file in `folder`, so that an output that ignores where each weight
        belongs is noticed."""
        model = require_model(name).with_shapes(shapes or {})
        path = model.path()
        if name.startswith("light_"):
            path = with_random_weights(path, folder / f"{name}.onnx", seed=1)
        inputs = model.sample_inputs()
        definition = Definition.of_file(path, inputs, precision)
        return cls(path, inputs, definition, definition.outputs())

    def compile(self, target: str, **options: Any) -> treadle.CompiledModel:
        """The model for a target; `options` as of `treadle.compile`."""
        shapes = {name: array.shape for name, array in self.inputs.items()}
        return treadle.compile(self.path, target, shapes, precision=self.definition.precision, **options)

    def compare(self, outputs: Mapping[str, Array]) -> list[Comparison]:
        """Each output beside what it must be."""
        return compare_all(outputs, self.expected)

    def disagreements(self, outputs: Mapping[str, Array]) -> list[str]:
        """What `treadle run --check` finds wrong with a model's outputs, and with ONNX Runtime's."""
        own, reference = (
            self.compare(outputs),
            compare_reference(self.path, self.inputs, self.definition, self.expected),
        )
        assert own
        found = [str(each) for each in own if not each.agrees]
        return found + [f"ONNX Runtime: {each}" for each in reference if not each.agrees]

    def unnoticed(self, model: treadle.CompiledModel) -> list[str]:
        """Outputs that are wrong and pass: zeros, one number everywhere, what other inputs give."""
        values = {name: each.value for name, (each, _) in self.expected.items()}
        dtypes = {name: dtype for name, (_, dtype) in self.expected.items()}
        wrong = {
            "zeros": {name: np.zeros(each.shape, dtypes[name]) for name, each in values.items()},
            "the mean": {name: np.full(each.shape, each.mean()).astype(dtypes[name]) for name, each in values.items()},
            "of zeros": model.run({name: np.zeros_like(array) for name, array in self.inputs.items()}),
        }
        return [f"{what}: {each}" for what, outputs in wrong.items() for each in self.compare(outputs) if each.agrees]


__all__ = ["NAMES", "QUICK_ON_GPU", "SMALLER", "Case"]
