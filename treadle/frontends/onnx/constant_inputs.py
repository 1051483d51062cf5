"""Inputs of a model that a caller fixes to values: they are constants of the graph, and no inputs of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ValueInfoProto

from treadle.dialects.graph.dtypes import is_float_dtype
from treadle.errors import TreadleError
from treadle.frontends.onnx.inputs import free_inputs
from treadle.frontends.onnx.tensor_data import dtype_of

Array = NDArray[Any]


def constant_inputs(graph: GraphProto, constants: Mapping[str, Array]) -> dict[str, Array]:
    """The values in the types of the model's inputs; a single number also stands for an input of one element.

    TreadleError that names the input: one that the model does not have, a value of another shape than the file
    declares, and numbers that are no values of the input's type.
    """
    entries = {entry.name: entry for entry in free_inputs(graph)}
    for name in constants:
        if name not in entries:
            raise TreadleError(f"there is no input '{name}'", "constants", list(entries) or "no constants")
    return {name: _value(entries[name], array) for name, array in constants.items()}


def _value(entry: ValueInfoProto, array: Array) -> Array:
    where = f"constants['{entry.name}']"
    if entry.type.WhichOneof("value") != "tensor_type":
        raise TreadleError("the input is no tensor", where, "an input that is a tensor")
    return _of_type(_of_shape(entry, array, where), dtype_of(entry.type.tensor_type.elem_type, where), where)


def _of_shape(entry: ValueInfoProto, array: Array, where: str) -> Array:
    tensor = entry.type.tensor_type
    if not tensor.HasField("shape"):
        return array
    declared = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in tensor.shape.dim]
    if array.ndim == 0 and all(extent in (1, None) for extent in declared):
        return array.reshape((1,) * len(declared))
    fits = array.ndim == len(declared) and all(
        wanted in (extent, None) for wanted, extent in zip(declared, array.shape, strict=True)
    )
    if not fits:
        shown = ", ".join(
            d.dim_param or "?" if e is None else str(e) for d, e in zip(tensor.shape.dim, declared, strict=True)
        )
        raise TreadleError(f"the value has the shape {list(array.shape)}", where, f"the shape [{shown}]")
    return array


def _of_type(array: Array, dtype: np.dtype[np.generic], where: str) -> Array:
    """The array in a type; floats are rounded to it, all other numbers have to be among its values."""
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
    floats = is_float_dtype(dtype)
    wide = np.float64 if floats or array.dtype.kind not in "biu" else object
    given, kept = array.astype(wide), converted.astype(wide)
    wrong = np.isfinite(given) & ~np.isfinite(kept) if floats else given != kept
    if np.any(wrong):
        number = array.reshape(-1)[int(np.argmax(wrong))].item()
        raise TreadleError(f"{number} is no value of {dtype}", where, _values_of(dtype))
    return converted


def _values_of(dtype: np.dtype[np.generic]) -> str:
    if dtype == np.bool_:
        return "0 and 1"
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.name)
        return f"whole numbers from {limits.min} to {limits.max}"
    return "numbers within the range of the type"


__all__ = ["constant_inputs"]
