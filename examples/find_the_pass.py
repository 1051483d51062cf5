"""Which pass changed what a model computes: the reference interpreter runs the IR after every pass.

    python examples/find_the_pass.py MODEL.onnx [--target sm_80] [--shape x=1,3,48,320] [--tolerance 1e-3]

The interpreter knows every stage from imported operators to loops, for both targets, and is plain NumPy: no compiler,
no GPU. It goes scalar by scalar once there are kernels, so take the smallest shapes that show the fault. What remains
are the printers and what compiles their text: `docs/debugging.md` says how to tell those.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.passes import ModulePass

from treadle.backends.reference.evaluate_module import find_function
from treadle.backends.reference.run_module import run_module
from treadle.compiler import lower
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.registry import treadle_context
from treadle.frontends.onnx import import_model
from treadle.passes.instruments import Instrument
from treadle.target import Target
from treadle.tools.arguments import parse_shapes

Array = NDArray[Any]
LAST = "loops"
"""The last stage whose IR the interpreter runs; the next one is spelled for the printers."""


class Watch(Instrument):
    """Runs the module before the first pass and after each, and notes how far its results are from the first ones."""

    def __init__(self, module: ModuleOp, inputs: Sequence[Array]) -> None:
        self._inputs = inputs
        self._expected = run_module(module, inputs)
        self.errors: list[tuple[str, str, float]] = []
        """Stage, pass, and the largest difference of an output divided by the largest magnitude expected there."""

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Adds the pass's error."""
        results = run_module(module, self._inputs)
        error = max(map(difference, results, self._expected), default=0.0)
        self.errors.append((stage, step.name, error))


def difference(actual: Array, expected: Array) -> float:
    """The largest difference divided by the largest finite magnitude expected; infinite where NaN or shape differs."""
    if actual.shape != expected.shape or not np.array_equal(np.isnan(actual), np.isnan(expected)):
        return float("inf")
    if not expected.size:
        return 0.0
    left, right = np.nan_to_num(actual.astype(np.float64)), np.nan_to_num(expected.astype(np.float64))
    return float(np.abs(left - right).max() / (np.abs(right).max() or 1.0))


def watch(module: ModuleOp, inputs: Sequence[Array], target: Target) -> list[tuple[str, str, float]]:
    """The error after each pass up to `LAST`; the module is lowered."""
    watching = Watch(module, inputs)
    lower(treadle_context(), module, target, to=LAST, instruments=[watching])
    return watching.errors


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each pass; 1 where one changed the results by more than the tolerance."""
    parser = argparse.ArgumentParser(description="Name the pass after which a model computes something else.")
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("--target", default="cpu", metavar="NAME")
    parser.add_argument("--shape", action="append", default=[], metavar="x=1,3,48,320")
    parser.add_argument("--tolerance", type=float, default=1e-3, metavar="T", help="relative; default 1e-3")
    args = parser.parse_args(argv)
    module = import_model(args.model, parse_shapes(args.shape))
    errors = watch(module, random_inputs(module), Target.parse(args.target))
    for stage, name, error in errors:
        print(f"{stage:10} {name:28} {error:.1e}{'  <-- here' if error > args.tolerance else ''}")
    return int(any(error > args.tolerance for _, _, error in errors))


def random_inputs(module: ModuleOp) -> list[Array]:
    """Seeded values for the arguments of @main: floats in [-1, 1), integers 0 and 1."""
    generator = np.random.default_rng(0)
    types = (arg.type for arg in find_function(module, "main").body.block.args)
    tensors = (type for type in types if isinstance(type, TensorType))
    return [_random(generator, type.get_shape(), numpy_dtype(type.get_element_type())) for type in tensors]


def _random(generator: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    is_float = np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"
    return (generator.uniform(-1, 1, shape) if is_float else generator.integers(0, 2, shape)).astype(dtype)


if __name__ == "__main__":
    sys.exit(main())
