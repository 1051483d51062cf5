"""Tensors whose elements a definition compares with each other: they are stored, and not computed at each read.

Compilers contract products and sums, and vectorise functions, in one place otherwise than in another, so that the same
expression of the same element may be rounded in two ways. Then no element would equal the largest one of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import arith, math
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.graph.dtypes import is_float
from treadle.passes.graph.definition_analysis import reads_by_user

_EXACT_OF_FLOATS = (
    arith.NegfOp, arith.MaximumfOp, arith.MinimumfOp, arith.MaxnumfOp, arith.MinnumfOp, arith.SelectOp, arith.CmpfOp,
    arith.ExtFOp, arith.ConstantOp, math.AbsFOp, math.CeilOp, math.FloorOp, math.TruncOp, math.RoundEvenOp,
    math.CopySignOp, AtOp,
)  # fmt: skip


def rounds(compute: ComputeOp) -> bool:
    """Whether a definition has arithmetic of floats whose rounding may depend on what is around it."""
    return any(
        is_float(result.type) and not isinstance(op, _EXACT_OF_FLOATS) and not _folds_exactly(op)
        for op in compute.body.walk()
        for result in op.results
    )


def is_compared(value: SSAValue) -> bool:
    """Whether elements of a tensor, or what follows from them without rounding, are compared with each other by a
    definition that reads it."""
    for user in reads_by_user(value):
        if not isinstance(user, ComputeOp):
            continue
        if _compares(user, value) or (not rounds(user) and is_compared(user.result)):
            return True
    return False


def _folds_exactly(op: Operation) -> bool:
    return isinstance(op, ReduceOp) and op.kind.data in ("max", "min")


def _compares(reader: ComputeOp, tensor: SSAValue) -> bool:
    comparisons = (op for op in reader.body.walk() if isinstance(op, arith.CmpfOp) and op.lhs is not op.rhs)
    return any(all(tensor in _tensors_of(side) for side in (op.lhs, op.rhs)) for op in comparisons)


def _tensors_of(scalar: SSAValue) -> set[SSAValue]:
    """The tensors on whose elements a scalar of a definition depends by its value."""
    found: set[SSAValue] = set()
    waiting, seen = [scalar], set[SSAValue]()
    while waiting:
        value = waiting.pop()
        if value in seen or not isinstance(value.owner, Operation):
            continue
        seen.add(value)
        waiting.extend(_sources(value.owner))
        if isinstance(value.owner, AtOp):
            found.add(value.owner.source)
    return found


def _sources(op: Operation) -> Iterator[SSAValue]:
    if isinstance(op, ReduceOp):
        yield yielded(op.body)
    elif isinstance(op, AtOp):
        if op.otherwise is not None:
            yield op.otherwise
    else:
        yield from op.operands


__all__ = ["is_compared", "rounds"]
