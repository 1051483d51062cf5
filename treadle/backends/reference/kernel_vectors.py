"""Vector operations of a kernel as Python; a vector is an array of rank 1."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import vector
from xdsl.dialects.builtin import MemRefType, VectorType
from xdsl.ir import Attribute, Operation

from treadle.dialects.graph.numpy_scalars import scalar_dtype, truncated
from treadle.dialects.loop import LaneCompareOp, LaneConvertOp, LaneMaskOp, LaneSelectOp, RoundTf32Op
from treadle.errors import TreadleError

Array = NDArray[Any]

_REDUCTIONS = {
    "add": "add", "mul": "multiply", "maximumf": "maximum", "minimumf": "minimum", "maxnumf": "fmax",
    "minnumf": "fmin", "maxsi": "maximum", "minsi": "minimum", "and": "bitwise_and", "or": "bitwise_or",
}  # fmt: skip
"""NumPy's function of each kind of `vector.reduction`."""

_COMPARISONS = {"oeq": "==", "ogt": ">", "oge": ">=", "olt": "<", "ole": "<=", "une": "!="}
"""Python's operator of each kind of `loop.lane_compare`."""


def expression(op: Operation) -> str | None:
    """A template of the operation's value over its operands' names; None for an operation of another kind."""
    if isinstance(op, vector.BroadcastOp):
        return f"np.full({lanes_of(op.vector.type)}, {{0}}, {dtype_name(op.vector.type)})"
    if isinstance(op, vector.CreateMaskOp):
        return f"np.arange({lanes_of(op.mask_vector.type)}) < {{0}}"
    if isinstance(op, LaneMaskOp):
        lane = f"np.arange({lanes_of(op.mask.type)})"
        return f"({{0}} <= {lane}) & ({lane} < {{1}})"
    if isinstance(op, LaneCompareOp):
        return f"{{0}} {_COMPARISONS[op.kind.data]} {{1}}"
    if isinstance(op, LaneConvertOp):
        return f"converted({{0}}, {dtype_name(op.result.type)})"
    if isinstance(op, LaneSelectOp):
        return "np.where({0}, {1}, {2})"
    if isinstance(op, RoundTf32Op):
        return "round_tf32({0})"
    if isinstance(op, vector.FMAOp):
        return "fma({0}, {1}, {2})"
    if isinstance(op, vector.ReductionOp) and op.kind.data in _REDUCTIONS:
        name = _REDUCTIONS[op.kind.data]
        folded = f"np.{name}.reduce({{0}}, dtype={{0}}.dtype)"
        return folded if op.acc is None else f"np.{name}({{1}}, {folded})"
    if isinstance(op, vector.ExtractOp):
        operand = iter(range(1, len(op.operands)))
        mixed = op.get_mixed_position()
        return "{0}" + "".join(f"[{at}]" if isinstance(at, int) else f"[{{{next(operand)}}}]" for at in mixed)
    return None


def dtype_name(type: Attribute) -> str:
    """The dtype of a vector's lanes, as text."""
    return f"np.dtype({scalar_dtype(cast('VectorType[Attribute]', type).element_type).name!r})"


def loaded_shape(op: vector.LoadOp) -> tuple[int, ...]:
    """The shape of what a load gives: consecutive elements of a row, or a whole buffer.

    TreadleError for a vector of several dimensions that is not all of its buffer.
    """
    shape = op.result.type.get_shape()
    if len(shape) > 1 and shape != cast("MemRefType[Attribute]", op.base.type).get_shape():
        raise TreadleError(f"{op.result.type} of {op.base.type}", accepted="vectors of rank 1, and whole buffers")
    return shape


def load_lanes(buffer: Sequence[Any], start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """The elements of a buffer from `start` on that fill a shape; None if one of them is not set."""
    found = buffer[start : start + prod(shape)]
    return None if any(v is None for v in found) else np.array(found, dtype).reshape(shape)


def load_active(
    buffer: Sequence[Any], start: int, active: Sequence[int], otherwise: Array, stride: int = 1
) -> Array | None:
    """`otherwise` with the `active` lanes read from a buffer; None if one of those is not set."""
    result = otherwise.copy()
    for lane in active:
        found = buffer[start + lane * stride]
        if found is None:
            return None
        result[lane] = found
    return result


def store_lanes(buffer: list[Any], start: int, value: Array) -> None:
    """Writes all lanes into a buffer from `start` on."""
    buffer[start : start + len(value)] = list(value)


def store_active(buffer: list[Any], start: int, active: Sequence[int], value: Array, stride: int = 1) -> None:
    """Writes the `active` lanes into a buffer whose lane 0 is `start`, the last one last."""
    for lane in active:
        buffer[start + lane * stride] = value[lane]


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c with one rounding (for float64, in long double)."""
    wide = np.longdouble if a.dtype == np.float64 else np.float64
    return (a.astype(wide) * b + c).astype(a.dtype)


def converted(a: Array, dtype: np.dtype[Any]) -> Array:
    """The lanes as numbers of another type; of floats the whole parts, as the nearest integers that the type has."""
    return truncated(a, dtype) if a.dtype.kind == "f" and dtype.kind in "iu" else a.astype(dtype)


def lanes_of(type: Attribute) -> int:
    """The lanes of a vector; TreadleError for one of another rank than 1."""
    shape = cast("VectorType[Attribute]", type).get_shape()
    if len(shape) != 1:
        raise TreadleError(f"{type} in a kernel", accepted="vectors of rank 1")
    return shape[0]


NAMESPACE: dict[str, object] = {
    "fma": fma, "load_active": load_active, "load_lanes": load_lanes, "store_active": store_active,
    "store_lanes": store_lanes, "converted": converted,
}  # fmt: skip
"""What the generated text calls."""

__all__ = ["NAMESPACE", "dtype_name", "expression", "lanes_of", "loaded_shape"]
