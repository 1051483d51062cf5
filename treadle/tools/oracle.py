"""ONNX Runtime as the reference for whole models, and how close to it outputs must be."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from treadle.dialects.graph.dtypes import epsilon, is_float_dtype
from treadle.errors import TreadleError
from treadle.lazy import lazy_module
from treadle.settings import EPSILON, Precision, Settings
from treadle.target import Target

if TYPE_CHECKING:
    from treadle import request
else:
    request = lazy_module("treadle.request")

Array = NDArray[Any]

_SAFETY = 16.0
"""Rounding errors of a sum of n terms behave like a random walk: sqrt(n) units in the last place, times this."""
_NARROW_SAFETY = 4.0
"""The same for roundings to a lower precision: sums do not repeat them, each value is rounded once."""
_ERRORS = 3
"""ONNX Runtime's log level: errors only."""


@dataclass(frozen=True)
class Comparison:
    """One output beside the reference's.

    absolute: the largest difference; relative: that divided by the largest magnitude of the reference
    """

    name: str
    absolute: float
    relative: float
    accepted: float
    problem: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the output is as close as it must be."""
        return not self.problem and self.relative <= self.accepted

    def __str__(self) -> str:
        verdict = "agrees" if self.agrees else f"DIFFERS{self.problem and ': '}{self.problem}"
        errors = f"max abs error {self.absolute:.3g}, max rel error {self.relative:.3g}"
        return f"{self.name}: {errors}, accepted {self.accepted:.3g}: {verdict}"


def reference_outputs(path: Path, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """ONNX Runtime's outputs, by name; TreadleError if it is not installed or does not run the model."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise TreadleError("ONNX Runtime is not installed", "--check", "pip install onnxruntime") from error
    options = runtime.SessionOptions()
    options.log_severity_level = _ERRORS
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        results = session.run(list(names), dict(inputs))
    except Exception as error:  # its exceptions have no common base but this
        reason = str(error).splitlines()[0]
        raise TreadleError(f"ONNX Runtime does not run the model: {reason}", path) from error
    return dict(zip(names, results, strict=True))


def compare(name: str, actual: Array, expected: Array, units: float) -> Comparison:
    """Compares two arrays; `units` is the accepted relative error in units of the type's epsilon.

    Integers and booleans must be equal. Where the reference is not finite, the
    output must be the same.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        problem = f"{actual.dtype}{list(actual.shape)}, the reference has {expected.dtype}{list(expected.shape)}"
        return Comparison(name, math.inf, math.inf, 0.0, problem)
    floating = is_float_dtype(expected.dtype)
    accepted = units * epsilon(expected.dtype) if floating else 0.0
    finite = np.isfinite(expected)
    if not np.array_equal(actual[~finite], expected[~finite], equal_nan=floating):
        return Comparison(name, math.inf, math.inf, accepted, "other values where the reference is not finite")
    wide, reference = actual[finite].astype(np.float64), expected[finite].astype(np.float64)
    if reference.size == 0:
        return Comparison(name, 0.0, 0.0, accepted)
    absolute = float(np.abs(wide - reference).max())
    scale = float(np.abs(reference).max())
    relative = absolute / scale if scale > 0 else absolute
    if math.isnan(relative):
        return Comparison(name, absolute, relative, accepted, "NaN where the reference is finite")
    return Comparison(name, absolute, relative, accepted)


def tolerance(path: Path, shapes: Mapping[str, Sequence[int]], precision: Precision = "f32") -> float:
    """The relative error, in units of the epsilon of f32, that rounding may cause in this model.

    Each operator rounds once, and a reduction once a term; as a random walk their errors add up to the square root of
    all of them (Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 2019).
    With a lower precision, so do its roundings: each conversion to it, and each operand of a product in tf32.
    """
    settings = Settings(precision)
    asked = request.Request(path, Target.parse("cpu"), shapes, settings=settings)
    module: Any = request.lowered_module(asked, "define")
    terms = coarse = 0
    for op in module.walk():
        if op.name == "graph.reduce":
            terms += math.prod(op.shape)
        elif op.name == "graph.matmul":
            terms += op.a.type.get_shape()[-1]
            coarse += 2 if op.precision is not None else 0
        elif op.name == "graph.compute":
            terms += 1
        elif op.name == "arith.truncf":
            coarse += 1
    narrow = _NARROW_SAFETY * math.sqrt(coarse) * EPSILON[precision] / EPSILON["f32"]
    return _SAFETY * math.sqrt(terms) + narrow
