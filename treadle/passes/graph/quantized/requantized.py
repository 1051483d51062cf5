"""Divisions by the scale of a result, as part of the factors and terms that are there anyway."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import f32
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import BinaryOp, CastOp, ReshapeOp, TransposeOp, UnaryOp
from treadle.dialects.graph.definition import int_list
from treadle.passes.graph.quantized.constants import constant_value, is_constant
from treadle.passes.graph.rewriting import shape_of, tensor


def divided(value: SSAValue, scale: SSAValue) -> list[Operation]:
    """The detached operations of which the last gives `value / scale`, without a division of what is no constant.

    None of them where there is no such form: `scale` has to be one positive constant, and `value` sums, maxima and
    moves, which nothing else reads, of products of integers by constants.
    """
    of_scale = constant_value(scale)
    if of_scale is None or of_scale.size != 1 or not of_scale.reshape(-1)[0] > 0:
        return []
    new: list[Operation] = []
    if _divided(value, scale, new) is None:
        discard(new)
        return []
    return new


def discard(detached: Sequence[Operation]) -> None:
    """Erases operations that were not inserted, so that they read nothing any more."""
    for op in reversed(detached):
        op.erase()


def _divided(value: SSAValue, scale: SSAValue, new: list[Operation]) -> SSAValue | None:
    op = value.owner
    if is_constant(value):
        return _quotient(value, scale, new)
    if len(list(value.uses)) != 1 or tensor(value).get_element_type() != f32:
        return None
    if isinstance(op, BinaryOp) and op.kind.data == "mul":
        sides = ((op.lhs, op.rhs), (op.rhs, op.lhs))
        number, factor = next((pair for pair in sides if is_constant(pair[1])), (None, None))
        if number is None or factor is None or not isinstance(number.owner, CastOp):
            return None
        operands: list[SSAValue | None] = [number, _quotient(factor, scale, new)]
    elif isinstance(op, BinaryOp) and op.kind.data in ("add", "sub", "max", "min"):
        operands = [_divided(x, scale, new) for x in op.operands]
    elif (isinstance(op, UnaryOp) and op.kind.data == "relu") or isinstance(op, ReshapeOp | TransposeOp):
        operands = [_divided(op.x, scale, new)]
    else:
        return None
    known = [x for x in operands if x is not None]
    if len(known) < len(operands):
        return None
    new.append(_with_operands(op, known))
    return new[-1].results[0]


def _with_operands(op: Operation, operands: list[SSAValue]) -> Operation:
    if isinstance(op, BinaryOp):
        return BinaryOp(op.kind.data, *operands)
    if isinstance(op, UnaryOp):
        return UnaryOp(op.kind.data, *operands)
    if isinstance(op, ReshapeOp):
        return ReshapeOp(operands[0], op.shape)
    assert isinstance(op, TransposeOp)
    return TransposeOp(operands[0], int_list(op.properties, "perm"))


def _quotient(value: SSAValue, scale: SSAValue, new: list[Operation]) -> SSAValue | None:
    """A constant divided by the scale; None where that overflows, or loses bits to a subnormal number."""
    a, b = constant_value(value), constant_value(scale)
    if a is None or b is None or a.dtype != np.float32:
        return None
    with np.errstate(all="ignore"):
        found = np.abs(a.astype(np.float64) / b.reshape(-1)[0])
    limits = np.finfo(np.float32)
    if not np.all((a == 0) | ((found >= limits.tiny) & (found <= limits.max))):
        return None
    one = ReshapeOp(scale, [])
    assert prod(shape_of(scale)) == 1
    new += [one, BinaryOp("div", value, one.result)]
    return new[-1].results[0]


__all__ = ["discard", "divided"]
