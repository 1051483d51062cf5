"""The arguments of @main that are extents, and the values that are computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph.compute import AtOp, ComputeOp, yielded

_SLT = arith.CMPI_COMPARISON_OPERATIONS.index("slt")

Extents: TypeAlias = Mapping[SSAValue, int]
"""The arguments of @main that are extents, and their numbers."""


def extents_of(main: FuncOp) -> Extents:
    """The last arguments of @main, as many as its attribute `extents` names; none without it."""
    names = main.attributes.get("extents")
    if not isinstance(names, ArrayAttr) or not names.data:
        return {}
    count, args = len(names.data), main.body.block.args
    return {arg: n for n, arg in enumerate(args[len(args) - count :])}


def enclosing_function(op: Operation) -> FuncOp | None:
    """The function that an operation is in; None if it is in none."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, FuncOp):
        parent = parent.parent_op()
    return parent


def extents_around(op: Operation) -> Extents:
    """The extents of the function that an operation is in; none outside of one."""
    main = enclosing_function(op)
    return {} if main is None else extents_of(main)


def extent_below(value: SSAValue, extents: Extents) -> int | None:
    """The number of an extent that is never less than an index: it is read, converted and clamped; else None.

    Extents count from 0, so that a lower limit up to 0 changes nothing, nor does counting from the end what is below 0.
    """
    op = value.owner
    if isinstance(op, arith.IndexCastOp):
        return extent_below(op.input, extents)
    if isinstance(op, arith.MinSIOp):
        found = (extent_below(side, extents) for side in op.operands)
        return next((number for number in found if number is not None), None)
    if isinstance(op, arith.MaxSIOp):
        known = [side for side in op.operands if not _is_at_most_zero(side)]
        return extent_below(known[0], extents) if len(known) == 1 else None
    if isinstance(op, arith.SelectOp) and _is_below_zero(op.cond, op.rhs):
        return extent_below(op.rhs, extents)
    if isinstance(op, AtOp) and op.predicate is None:
        computed = op.source.owner
        if isinstance(computed, ComputeOp):
            return extent_below(yielded(computed.body), extents)
        return None if op.indices else extents.get(op.source)
    return None


def _is_below_zero(condition: SSAValue, value: SSAValue) -> bool:
    op = condition.owner
    return (
        isinstance(op, arith.CmpiOp)
        and op.predicate.value.data == _SLT
        and op.lhs is value
        and isinstance(zero := op.rhs.owner, arith.ConstantOp)
        and isinstance(zero.value, IntegerAttr)
        and zero.value.value.data == 0
    )


def _is_at_most_zero(value: SSAValue) -> bool:
    op = value.owner
    return isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr) and op.value.value.data <= 0
