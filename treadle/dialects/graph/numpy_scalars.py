"""NumPy's version of every arith and math operation that a definition may hold.

Operands are arrays of the operations' own types (an `index` is int64), which broadcast; so is the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr
from xdsl.ir import Attribute, Operation

from treadle.dialects.graph.dtypes import is_float_dtype, numpy_dtype
from treadle.dialects.location import location_of
from treadle.dialects.scalar_functions import FUNCTION_OF, WHERE
from treadle.errors import TreadleError

Array = NDArray[Any]

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def scalar_dtype(type: Attribute) -> np.dtype[Any]:
    """The dtype of a scalar in a definition: an index is int64; KeyError for a type that has none."""
    return np.dtype(np.int64) if isinstance(type, IndexType) else numpy_dtype(type)


def _unsigned(a: Array) -> Array:
    return np.asarray(a).view(_UNSIGNED[a.dtype.itemsize])


def _divide(a: Array, b: Array) -> Array:
    """Signed division that truncates. As all of NumPy's: by 0 it is 0, and the lowest number by -1 is itself."""
    return np.asarray((a - np.fmod(a, b)) // b)


def _unsigned_divide(a: Array, b: Array) -> Array:
    return np.asarray(_unsigned(a) // _unsigned(b)).view(a.dtype)


def _unsigned_remainder(a: Array, b: Array) -> Array:
    return np.asarray(_unsigned(a) % _unsigned(b)).view(a.dtype)


def _unsigned_max(a: Array, b: Array) -> Array:
    return np.maximum(_unsigned(a), _unsigned(b)).view(a.dtype)


def _unsigned_min(a: Array, b: Array) -> Array:
    return np.minimum(_unsigned(a), _unsigned(b)).view(a.dtype)


def rounded(a: Array, dtype: np.dtype[Any]) -> Array:
    """Floats in another float type, rounded once: `ml_dtypes` goes through float32."""
    if a.dtype != np.float64 or np.issubdtype(dtype, np.floating):
        return a.astype(dtype)
    nearest = a.astype(np.float32)
    cut = np.where(np.abs(nearest) > np.abs(a), np.nextafter(nearest, np.float32(0)), nearest)
    # The last bit says whether anything was cut off: Boldo and Melquiond, "When double rounding is odd", 2005.
    odd = (cut.view(np.int32) | 1).view(np.float32)
    return np.where((nearest == a) | np.isnan(a), nearest, odd).astype(dtype)


def truncated(a: Array, dtype: np.dtype[Any]) -> Array:
    """The whole parts of floats as integers; the lowest or the highest one for what lies beyond, 0 for NaN."""
    wide, limits = a.astype(np.float64), np.iinfo(dtype)
    lowest, end = float(limits.min), 2.0 * (int(limits.max) // 2 + 1)
    whole = np.where((wide >= lowest) & (wide < end), wide, 0).astype(dtype)
    lower = np.where(wide < lowest, dtype.type(limits.min), whole)
    return np.where(wide >= end, dtype.type(limits.max), lower)


_FUNCTIONS: dict[type[Operation], Callable[..., Any]] = {
    arith.AddfOp: np.add, arith.SubfOp: np.subtract, arith.MulfOp: np.multiply, arith.DivfOp: np.divide,
    arith.NegfOp: np.negative,
    arith.AddiOp: np.add, arith.SubiOp: np.subtract, arith.MuliOp: np.multiply,
    arith.DivSIOp: _divide, arith.RemSIOp: np.fmod,
    arith.DivUIOp: _unsigned_divide, arith.RemUIOp: _unsigned_remainder, arith.FloorDivSIOp: np.floor_divide,
    arith.MaxSIOp: np.maximum, arith.MinSIOp: np.minimum, arith.MaxUIOp: _unsigned_max, arith.MinUIOp: _unsigned_min,
    arith.AndIOp: np.bitwise_and, arith.OrIOp: np.bitwise_or, arith.XOrIOp: np.bitwise_xor,
    arith.SelectOp: np.where,
    **{operation: function.numpy for operation, function in FUNCTION_OF.items()},
}  # fmt: skip

_CONVERSIONS = (
    arith.ExtFOp, arith.TruncFOp, arith.FPToSIOp, arith.FPToUIOp, arith.SIToFPOp, arith.UIToFPOp, arith.BitcastOp,
    arith.ExtSIOp, arith.ExtUIOp, arith.TruncIOp, arith.IndexCastOp,
)  # fmt: skip

# The predicates in the order of their codes in the IR; the codes of an ordered and an unordered comparison
# differ by seven.
_INTEGER_PREDICATES = (
    np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal,
    np.less, np.less_equal, np.greater, np.greater_equal,
)  # fmt: skip
_FLOAT_PREDICATES = (np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal)


def _compare_integers(op: arith.CmpiOp, a: Array, b: Array) -> Array:
    code = op.predicate.value.data
    if code >= 6:
        a, b = _unsigned(a), _unsigned(b)
    return np.asarray(_INTEGER_PREDICATES[code](a, b))


def _compare_floats(op: arith.CmpfOp, a: Array, b: Array) -> Array:
    code = op.predicate.value.data
    unordered = np.isnan(a) | np.isnan(b)
    if code in (0, 15):
        return np.full(unordered.shape, code == 15)
    if code in (7, 14):
        return np.asarray(unordered if code == 14 else ~unordered)
    if code < 7:
        return np.asarray(_FLOAT_PREDICATES[code - 1](a, b) & ~unordered)
    return np.asarray(_FLOAT_PREDICATES[code - 8](a, b) | unordered)


def constant_value(op: arith.ConstantOp) -> Array:
    """The value of an `arith.constant` as an array of rank 0; TreadleError if it is no number."""
    if not isinstance(op.value, IntegerAttr | FloatAttr):
        raise TreadleError(f"arith.constant {op.value} is no number", location_of(op))
    dtype = scalar_dtype(op.result.type)
    value = op.value.value.data
    return np.array(bool(value) if dtype == np.bool_ else value, np.float64 if is_float_dtype(dtype) else dtype).astype(
        dtype
    )


def apply_scalar(op: Operation, operands: list[Array]) -> Array:
    """The result of one arith or math operation; TreadleError naming one that definitions do not hold."""
    function = _FUNCTIONS.get(type(op))
    if function is not None:
        return np.asarray(function(*operands))
    if isinstance(op, arith.ConstantOp):
        return constant_value(op)
    if isinstance(op, arith.CmpiOp):
        return _compare_integers(op, *operands)
    if isinstance(op, arith.CmpfOp):
        return _compare_floats(op, *operands)
    if isinstance(op, _CONVERSIONS):
        return _convert(op, operands[0])
    tables = f"{WHERE}, or of _FUNCTIONS of treadle/dialects/graph/numpy_scalars.py"
    accepted = f"an operation of {tables}, graph.at, graph.reduce"
    raise TreadleError(f"{op.name} has no value in a definition", location_of(op), accepted)


def _convert(op: Operation, a: Array) -> Array:
    dtype = scalar_dtype(op.results[0].type)
    if isinstance(op, arith.TruncIOp) and dtype == np.bool_:
        return np.asarray((a & 1) != 0)
    if isinstance(op, arith.ExtSIOp) and a.dtype == np.bool_:
        return -a.astype(dtype)
    if isinstance(op, arith.FPToSIOp | arith.FPToUIOp):
        return truncated(a, dtype)
    if isinstance(op, arith.TruncFOp):
        return rounded(a, dtype)
    if isinstance(op, arith.BitcastOp):
        return a.view(dtype)
    return a.astype(dtype)


__all__ = ["Array", "apply_scalar", "constant_value", "rounded", "scalar_dtype", "truncated"]
