"""Values that operators compute from constants, before they are folded."""

from __future__ import annotations

from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import SSAValue

from treadle.dialects.graph import ConstantOp, Operator
from treadle.dialects.graph.evaluate import evaluate
from treadle.passes.graph.rewriting import Array, constant_of, shape_of

_DEEPEST = 12
"""Operators between constants and a value, at most: parameters of quantisation have a cast, a difference, some moves
and products. Of a model's other values, whose operators are many, few are looked at."""


def is_constant(value: SSAValue, deepest: int = _DEEPEST) -> bool:
    """Whether a value depends on constants only, through few operators."""
    op = value.owner
    if isinstance(op, ConstantOp):
        return True
    if not isinstance(op, Operator) or not op.operands or not deepest:
        return False
    return all(is_constant(operand, deepest - 1) for operand in op.operands)


def constant_value(value: SSAValue) -> Array | None:
    """The array of a constant in this sense; None for any other value."""
    return _value(value) if is_constant(value) else None


def _value(value: SSAValue) -> Array | None:
    op = value.owner
    if isinstance(op, ConstantOp):
        return constant_of(value)
    if not isinstance(op, Operator) or DYNAMIC_INDEX in shape_of(value):
        return None
    known: dict[SSAValue, Array] = {}
    for operand in op.operands:
        array = _value(operand)
        if array is None:
            return None
        known[operand] = array
    return evaluate(op, known)


__all__ = ["constant_value", "is_constant"]
