"""Arithmetics of the evaluator: how values of tensors and definitions are represented and computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from xdsl.ir import Operation

from treadle.dialects.graph.compute import ReduceOp
from treadle.dialects.graph.dtypes import integer_dtype_limits, is_float_dtype
from treadle.dialects.graph.numpy_reads import Affine, contract, read
from treadle.dialects.graph.numpy_scalars import Array, apply_scalar, scalar_dtype

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


__all__ = ["COMBINE", "FOLD", "Arithmetic", "Exact", "V", "identity", "spread"]
