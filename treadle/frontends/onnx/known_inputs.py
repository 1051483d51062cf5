"""Inputs of a model whose values have to be known at compile time, such as the shape that a `Reshape` is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from onnx import ModelProto

from treadle.frontends.onnx.importer import import_model
from treadle.frontends.onnx.node import ValueNeeded
from treadle.shapes import Shapes


def needed_inputs(model: ModelProto, values: Mapping[str, NDArray[Any]], shapes: Shapes | None = None) -> set[str]:
    """The inputs whose values a model cannot be imported without, one of the least such sets.

    values: those of a call, for all inputs
    TreadleError: a model that cannot be imported with them either.
    """
    needed, content = set[str](), model.SerializeToString()
    while True:
        left = {name: shape for name, shape in (shapes or {}).items() if name not in needed}
        try:
            import_model(content, left, {name: values[name] for name in needed})
        except ValueNeeded as error:
            if not error.inputs - needed:
                raise
            needed |= error.inputs
        else:
            return needed


__all__ = ["needed_inputs"]
