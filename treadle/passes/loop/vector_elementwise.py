"""Elementwise operations of a vectorised loop: one scalar operation as one on whole vectors."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import VectorType, f32, i1
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.effects import only_computes
from treadle.dialects.loop import LaneCompareOp, LaneSelectOp
from treadle.dialects.loop.vector_compare import LANE_COMPARISONS
from treadle.passes.loop.vector_mask import Unsupported

_LOGIC = (arith.AndIOp, arith.OrIOp, arith.XOrIOp)


def is_elementwise(op: Operation) -> bool:
    """Whether an operation computes one value from its operands alone: it reads no memory and makes no buffer."""
    return only_computes(op) and len(op.results) == 1


def vector_form(op: Operation, operands: Sequence[SSAValue]) -> Operation:
    """The operation on vectors (the condition of a choice may be a scalar).

    Unsupported where there is none: floats other than f32, integers but for the logic of i1, and conversions.
    """
    result = op.results[0].type
    if isinstance(op, arith.CmpfOp):
        return _comparison(op, operands)
    if isinstance(op, arith.SelectOp) and result == f32:
        condition, then, otherwise = operands
        if isinstance(condition.type, VectorType):
            return LaneSelectOp(condition, then, otherwise)
        return arith.SelectOp(condition, then, otherwise)
    types: list[Attribute] = [operand.type for operand in op.operands]
    if set(types) != {result} or not (result == f32 or (result == i1 and isinstance(op, _LOGIC))):
        said = ", ".join(map(str, types))
        raise Unsupported(f"{op.name} of {said}")
    return type(op).create(
        operands=operands,
        result_types=[operands[0].type],
        properties=dict(op.properties),
        attributes=dict(op.attributes),
    )


def _comparison(op: arith.CmpfOp, operands: Sequence[SSAValue]) -> Operation:
    kind = arith.CMPF_COMPARISON_OPERATIONS[op.predicate.value.data]
    if kind not in LANE_COMPARISONS or op.lhs.type != f32:
        raise Unsupported(f"a comparison '{kind}' of {op.lhs.type}")
    return LaneCompareOp(kind, *operands)
