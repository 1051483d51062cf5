"""Arithmetics of the evaluator: how values of tensors and definitions are represented and computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr
from xdsl.ir import Attribute, Operation

from treadle.dialects.graph.compute import ReduceOp
from treadle.dialects.graph.dtypes import integer_dtype_limits, is_float_dtype, numpy_dtype
from treadle.dialects.location import location_of
from treadle.dialects.scalar import FUNCTION_OF, WHERE
from treadle.errors import TreadleError

# NumPy's version of every arith and math operation that a definition may hold.
#
# Operands are arrays of the operations' own types (an `index` is int64), which broadcast; so is the result.

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
    arith.ShRSIOp: np.right_shift,
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
    tables = f"{WHERE}, or of _FUNCTIONS of treadle/dialects/graph/arithmetic.py"
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


# Reading tensors and contracting products in the NumPy evaluator.
#
# Every value of a definition is an array over the iteration space, of extent 1 where it does not depend on an
# axis. Axes are counted from the right ("levels"): the result's dimensions are levels n-1 .. 0, each enclosing
# `graph.reduce` adds its own to the left, so that NumPy's broadcasting pairs inner with outer values.

_PADDING_LIMIT = 8
"""A predicated read pads its source if that makes it at most this many times larger."""
_EXACT = 2.0**53
"""The largest magnitude up to which float64 holds every integer."""


@dataclass(frozen=True)
class Affine:
    """An index that is `start + sum(steps[level] * position on that axis)`."""

    start: int
    steps: Mapping[int, int]

    def shifted(self, by: int) -> Affine:
        return Affine(self.start + by, self.steps)

    def scaled(self, by: int) -> Affine:
        return Affine(self.start * by, {level: step * by for level, step in self.steps.items() if step * by})

    def plus(self, other: Affine) -> Affine:
        steps = dict(self.steps)
        for level, step in other.steps.items():
            steps[level] = steps.get(level, 0) + step
        return Affine(self.start + other.start, {level: step for level, step in steps.items() if step})

    def minus(self, other: Affine) -> Affine:
        return self.plus(other.scaled(-1))

    def times(self, other: Affine) -> Affine | None:
        """The product, if one factor is a constant."""
        if not other.steps:
            return self.scaled(other.start)
        return None if self.steps else other.scaled(self.start)

    def bounds(self, sizes: Sequence[int]) -> tuple[int, int]:
        """The least and the largest value; `sizes[level]` is the extent of an axis, none of which is 0."""
        spans = [step * (sizes[level] - 1) for level, step in self.steps.items()]
        return self.start + sum(min(s, 0) for s in spans), self.start + sum(max(s, 0) for s in spans)

    def array(self, sizes: Sequence[int]) -> Array:
        """All values as an array over the iteration space."""
        result = np.array(self.start, np.int64)
        for level, step in self.steps.items():
            result = result + along(np.arange(sizes[level], dtype=np.int64) * step, level)
        return np.asarray(result)


AFFINE_OPERATORS: Mapping[type[Operation], Callable[..., Affine | None]] = {
    arith.AddiOp: Affine.plus, arith.SubiOp: Affine.minus, arith.MuliOp: Affine.times,
}  # fmt: skip
"""What index arithmetic does to affine indices; None where the result is not one."""


def along(values: Array, level: int) -> Array:
    """A vector laid along one axis of the iteration space."""
    return values.reshape(-1, *[1] * level)


def read(
    source: Array,
    indices: Sequence[Affine | Array],
    sizes: Sequence[int],
    predicate: Array | None,
    otherwise: Array | None,
) -> Array:
    """The elements of `source` at `indices`, `otherwise` where the predicate is false.

    TreadleError if an index without predicate leaves the tensor.
    """
    if any(isinstance(i, Affine) and any(sizes[level] == 0 for level in i.steps) for i in indices):
        return _empty(source, indices, sizes)
    affine = [i for i in indices if isinstance(i, Affine)]
    if predicate is None or otherwise is None:
        values = _strided(source, affine, sizes) if len(affine) == len(indices) else _gathered(source, indices, sizes)
        return values
    if len(affine) == len(indices):
        padded = _padded(source, affine, sizes)
        if padded is not None:
            return np.where(predicate, _strided(*padded, sizes), otherwise)
    if 0 in source.shape:
        return otherwise
    clipped = [np.clip(_array(i, sizes), 0, e - 1) for i, e in zip(indices, source.shape, strict=True)]
    return np.where(predicate, source[tuple(clipped)], otherwise)


def _array(index: Affine | Array, sizes: Sequence[int]) -> Array:
    return index.array(sizes) if isinstance(index, Affine) else index


def _empty(source: Array, indices: Sequence[Affine | Array], sizes: Sequence[int]) -> Array:
    shape = np.broadcast_shapes(*(_array(i, sizes).shape for i in indices))
    return np.empty(shape, source.dtype)


def _gathered(source: Array, indices: Sequence[Affine | Array], sizes: Sequence[int]) -> Array:
    arrays = [_array(i, sizes) for i in indices]
    for dimension, (values, extent) in enumerate(zip(arrays, source.shape, strict=True)):
        if values.size and (values.min() < 0 or values.max() >= extent):
            raise _outside(source, dimension, int(values.min()), int(values.max()))
    return source[tuple(arrays)]


def _outside(source: Array, dimension: int, low: int, high: int) -> TreadleError:
    return TreadleError(
        f"graph.at reads elements {low} to {high} of dimension {dimension} of a tensor {list(source.shape)}",
        accepted=f"0 to {source.shape[dimension] - 1}, or a predicate",
    )


def _strided(source: Array, indices: Sequence[Affine], sizes: Sequence[int]) -> Array:
    """A view of the elements at affine indices, without a copy."""
    for dimension, index in enumerate(indices):
        low, high = index.bounds(sizes)
        if low < 0 or high >= source.shape[dimension]:
            raise _outside(source, dimension, low, high)
    rank = 1 + max((level for i in indices for level in i.steps), default=-1)
    shape, strides = [1] * rank, [0] * rank
    for index, stride in zip(indices, source.strides, strict=True):
        for level, step in index.steps.items():
            shape[rank - 1 - level] = sizes[level]
            strides[rank - 1 - level] += step * stride
    first = source[tuple(slice(i.start, None) for i in indices)]
    # Of a float of 8 bits the array interface says "f1", which NumPy does not read.
    plain = first.view(np.uint8) if first.dtype.itemsize == 1 else first
    return as_strided(plain, shape, strides, writeable=False).view(first.dtype)


def _padded(source: Array, indices: Sequence[Affine], sizes: Sequence[int]) -> tuple[Array, list[Affine]] | None:
    """The source extended so that every index is inside, and the indices into it; None if too large."""
    bounds = [i.bounds(sizes) for i in indices]
    pads = [(max(0, -low), max(0, high + 1 - e)) for (low, high), e in zip(bounds, source.shape, strict=True)]
    extended = [before + e + after for (before, after), e in zip(pads, source.shape, strict=True)]
    if prod(extended) > _PADDING_LIMIT * source.size + 4096:
        return None
    moved = [i.shifted(before) for i, (before, _) in zip(indices, pads, strict=True)]
    return (np.pad(source, pads) if any(map(any, pads)) else source), moved


def contract(a: Array, b: Array, sizes: Sequence[int], folded: int) -> Array:
    """The sum of `a * b` over the `folded` leftmost axes of the space `sizes`, as matrix products: of floats in
    float64, of integers modulo 2^64, in int64 or uint64.

    The result has the rank of the remaining axes. `sizes` is indexed by level. Axes of both factors that stay
    are the batch of the product, those of one factor its rows or columns.
    """
    if is_float_dtype(a.dtype):
        return _contract(a, b, sizes, folded, np.dtype(np.float64))
    wide = np.dtype(np.uint64 if a.dtype.kind == "u" else np.int64)
    largest = (float(np.abs(x.astype(np.float64)).max(initial=0.0)) for x in (a, b))
    # NumPy multiplies floats many times as fast as integers.
    exact = prod(largest) * prod(sizes[len(sizes) - folded :]) <= _EXACT
    return _contract(a, b, sizes, folded, np.dtype(np.float64) if exact else wide).astype(wide, copy=False)


def _contract(a: Array, b: Array, sizes: Sequence[int], folded: int, dtype: np.dtype[Any]) -> Array:
    rank = len(sizes)
    a, b = (x.reshape([1] * (rank - x.ndim) + list(x.shape)).astype(dtype, copy=False) for x in (a, b))
    repeats = 1
    for axis in range(folded):
        in_a, in_b = a.shape[axis] > 1, b.shape[axis] > 1
        repeats *= 1 if in_a or in_b else sizes[rank - 1 - axis]
        a = a.sum(axis, keepdims=True) if in_a and not in_b else a
        b = b.sum(axis, keepdims=True) if in_b and not in_a else b
    inner = [x for x in range(folded) if a.shape[x] > 1]
    kept = range(folded, rank)
    batch = [x for x in kept if a.shape[x] > 1 and b.shape[x] > 1]
    rows = [x for x in kept if a.shape[x] > 1 and b.shape[x] == 1]
    columns = [x for x in kept if a.shape[x] == 1 and b.shape[x] > 1]
    left = _matrices(a, batch, rows, inner)
    right = _matrices(b, batch, inner, columns)
    product: Any = np.matmul(left, right)
    order = [*batch, *rows, *columns]
    extents = [a.shape[x] for x in (*batch, *rows)] + [b.shape[x] for x in columns]
    spread = product.reshape(extents).transpose(np.argsort(order)) if order else product
    shape = [max(a.shape[x], b.shape[x]) for x in kept]
    return spread.reshape(shape) * repeats


def _matrices(x: Array, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> Array:
    groups = (batch, rows, columns)
    used = [axis for group in groups for axis in group]
    rest = [axis for axis in range(x.ndim) if axis not in used]
    shape = [prod(x.shape[axis] for axis in group) for group in groups]
    return x.transpose([*used, *rest]).reshape(shape)


FOLD: Mapping[str, Any] = {
    "add": np.sum, "mul": np.prod, "max": np.max, "min": np.min, "and": np.all, "or": np.any,
}  # fmt: skip
COMBINE: Mapping[str, Any] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip


class Shaped(Protocol):
    """A value of one element for each point of an iteration space, or of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...


V = TypeVar("V", bound=Shaped)


class Arithmetic(Protocol[V]):
    """How values of tensors and of definitions are represented and computed.

    The axes of values are those of the iteration space (`numpy_reads`). `folded` counts the leftmost of them, over
    which a reduction runs.
    """

    def lift(self, array: Array) -> V:
        """Exact numbers: those of a constant, or of an index."""
        ...

    def reshape(self, value: V, shape: Sequence[int]) -> V: ...

    def broadcast(self, value: V, shape: Sequence[int]) -> V: ...

    def scalar(self, op: Operation, operands: list[V]) -> V:
        """An arith or math operation."""
        ...

    def read(
        self, source: V, indices: Sequence[Affine | V], sizes: Sequence[int], predicate: V | None, otherwise: V | None
    ) -> V:
        """Elements of a tensor."""
        ...

    def fold(self, op: ReduceOp, value: V, sizes: Sequence[int], folded: int) -> V:
        """Some points of a reduction, `value` being what its body yields."""
        ...

    def contract(self, op: ReduceOp, factors: tuple[V, V], sizes: Sequence[int], folded: int) -> V:
        """The same for a sum of products, of floats or of integers."""
        ...

    def combine(self, kind: str, a: V, b: V) -> V:
        """Two parts of a reduction."""
        ...

    def finish(self, op: ReduceOp, total: V | None) -> V:
        """A whole reduction's value in its type, from all parts; None of no points."""
        ...


class Exact:
    """Arrays of the element types: sums and products of floats run in float64 and are rounded once, all other
    arithmetic is done in the element type."""

    def lift(self, array: Array) -> Array:
        return array

    def reshape(self, value: Array, shape: Sequence[int]) -> Array:
        return value.reshape(shape)

    def broadcast(self, value: Array, shape: Sequence[int]) -> Array:
        return np.broadcast_to(value, shape)

    def scalar(self, op: Operation, operands: list[Array]) -> Array:
        return apply_scalar(op, operands)

    def read(
        self,
        source: Array,
        indices: Sequence[Affine | Array],
        sizes: Sequence[int],
        predicate: Array | None,
        otherwise: Array | None,
    ) -> Array:
        return read(source, indices, sizes, predicate, otherwise)

    def fold(self, op: ReduceOp, value: Array, sizes: Sequence[int], folded: int) -> Array:
        kind = op.kind.data
        full, axes = spread(value, sizes, folded), tuple(range(folded))
        if kind in ("add", "mul"):
            wide = np.float64 if is_float_dtype(value.dtype) else value.dtype
            return np.asarray(FOLD[kind](full, axis=axes, dtype=wide))
        return np.asarray(FOLD[kind](full, axis=axes))

    def contract(self, op: ReduceOp, factors: tuple[Array, Array], sizes: Sequence[int], folded: int) -> Array:
        return contract(*factors, sizes, folded)

    def combine(self, kind: str, a: Array, b: Array) -> Array:
        return COMBINE[kind](a, b)

    def finish(self, op: ReduceOp, total: Array | None) -> Array:
        dtype = scalar_dtype(op.result.type)
        if total is None:
            return np.array(identity(op.kind.data, dtype), dtype)
        return np.asarray(total).astype(dtype, copy=False)


def spread(value: Array, sizes: Sequence[int], folded: int) -> Array:
    """A value over the iteration space `sizes`, whose `folded` leftmost axes have their extents."""
    aligned = value.reshape([1] * (len(sizes) - value.ndim) + list(value.shape))
    extents = [sizes[len(sizes) - 1 - axis] for axis in range(folded)]
    return np.broadcast_to(aligned, [*extents, *aligned.shape[folded:]])


def identity(kind: str, dtype: np.dtype[Any]) -> Any:
    """The value of a reduction over no points."""
    if kind in ("add", "or"):
        return 0
    if kind in ("mul", "and"):
        return 1
    if is_float_dtype(dtype):
        return -np.inf if kind == "max" else np.inf
    return integer_dtype_limits(dtype)[0 if kind == "max" else 1]
