"""Reading tensors and contracting products in the NumPy evaluator.

Every value of a definition is an array over the iteration space, of extent 1 where it does not depend on an
axis. Axes are counted from the right ("levels"): the result's dimensions are levels n-1 .. 0, each enclosing
`graph.reduce` adds its own to the left, so that NumPy's broadcasting pairs inner with outer values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from xdsl.dialects import arith
from xdsl.ir import Operation

from treadle.dialects.graph.dtypes import is_float_dtype
from treadle.dialects.graph.numpy_scalars import Array
from treadle.errors import TreadleError

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


__all__ = ["AFFINE_OPERATORS", "Affine", "along", "contract", "read"]
