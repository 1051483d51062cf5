"""The arithmetic of shapes whose extents are symbols: operators of a few integers, element by element."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import IntegerType
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import (
    BinaryOp,
    BroadcastOp,
    CastOp,
    ConcatOp,
    GatherOp,
    Operator,
    ReductionOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    WhereOp,
)
from treadle.dialects.graph.definition import int_list
from treadle.frontends.common.arrays import Array
from treadle.frontends.common.extent import Extent, Symbolic, expression_of

Elements = NDArray[np.object_]


def _quotient(a: Symbolic, b: Symbolic) -> Symbolic:
    """Of integers that are not negative, where truncation is floor division."""
    return a // b


def _equal(a: Symbolic, b: Symbolic) -> bool:
    """VerifyException where it depends on the call, other than `==`, which is then False."""
    if not isinstance(a, Extent) and not isinstance(b, Extent):
        return a == b
    return expression_of(a) == expression_of(b) or not (a < b or a > b)


_BINARY: dict[str, Callable[[Symbolic, Symbolic], Symbolic]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _quotient,
    "max": max,
    "min": min,
    "eq": _equal,
    "ne": lambda a, b: not _equal(a, b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def folded_elements(op: Operator, operands: Sequence[Array]) -> Elements | None:
    """The elements of an operator's result, of operands of integers and extents; None where it is none of those that
    shapes are computed with, where a comparison depends on the call, and where some call's integers may not fit the
    type, so that they wrap: then it has to be computed in each call.
    """
    try:
        folded = _folded_elements(op, operands)
    except VerifyException:
        return None
    return folded if folded is not None and _fit(folded, op) else None


def _fit(elements: Elements, op: Operator) -> bool:
    """Whether the type of an operator's result, if that is signed integers, has these elements in each call."""
    type = op.type.get_element_type()
    if not isinstance(type, IntegerType) or type.width.data == 1:
        return True
    end = 1 << type.width.data - 1
    for value in symbols_in(elements):
        least, greatest = value.expression.range() if isinstance(value, Extent) else (value, value)
        if least is None or greatest is None or least < -end or greatest >= end:
            return False
    return True


def _folded_elements(op: Operator, operands: Sequence[Array]) -> Elements | None:
    given = [np.asarray(array, object) for array in operands]
    if isinstance(op, ReshapeOp):
        return given[0].reshape(op.shape)
    if isinstance(op, TransposeOp):
        return given[0].transpose(int_list(op.properties, "perm"))
    if isinstance(op, BroadcastOp):
        return np.broadcast_to(given[0], op.shape)
    if isinstance(op, ConcatOp):
        return np.concatenate(given, axis=op.dim.value.data)
    if isinstance(op, GatherOp):
        return np.asarray(np.take(given[0], operands[1].astype(np.int64), axis=op.dim.value.data), object)
    if isinstance(op, SliceOp):
        return _sliced(op, given[0])
    if isinstance(op, CastOp):
        to = op.type.get_element_type()
        return given[0] if isinstance(to, IntegerType) and to.width.data >= 32 else None
    if isinstance(op, WhereOp):
        return np.where(operands[0].astype(bool), given[1], given[2]) if operands[0].dtype == bool else None
    if isinstance(op, BinaryOp) and op.kind.data in _BINARY:
        return _each(_BINARY[op.kind.data], *given)
    if isinstance(op, ReductionOp) and op.kind.data in ("add", "mul"):
        return _folded(op, given[0])
    return None


def elements_of(values: Iterable[Symbolic], shape: Sequence[int]) -> Elements:
    """Integers and extents as an array of a shape, in row-major order."""
    result = np.empty(prod(shape), object)
    for n, value in enumerate(values):
        result[n] = value
    return result.reshape(tuple(shape))


def symbols_in(elements: Elements) -> list[Symbolic]:
    """The integers and extents of an array, in row-major order."""
    return list(cast("Iterable[Symbolic]", elements.flat))


def _each(rule: Callable[[Symbolic, Symbolic], Symbolic], a: Elements, b: Elements) -> Elements:
    pairs = np.broadcast(a, b)
    return elements_of([rule(x, y) for x, y in pairs], pairs.shape)


def _sliced(op: SliceOp, x: Elements) -> Elements:
    starts, steps = int_list(op.properties, "starts"), int_list(op.properties, "steps")
    chosen = [start + step * np.arange(size) for start, step, size in zip(starts, steps, op.shape, strict=True)]
    return x[np.ix_(*chosen)]


def _folded(op: ReductionOp, x: Elements) -> Elements:
    dims = int_list(op.properties, "dims")
    kept = [d for d in range(x.ndim) if d not in dims]
    rows = x.transpose([*kept, *dims]).reshape(*(x.shape[d] for d in kept), -1)
    return elements_of(
        [(sum if op.kind.data == "add" else prod)(row) for row in rows.reshape(-1, rows.shape[-1])], op.shape
    )


__all__ = ["Elements", "elements_of", "folded_elements", "symbols_in"]
