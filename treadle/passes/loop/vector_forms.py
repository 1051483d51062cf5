"""What a vectorised loop may do with vectors of an element type: elementwise operations, and accesses."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import VectorType, f32, i1, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import Rewriter

from treadle.dialects.effects import only_computes
from treadle.dialects.graph.dtypes import ui8
from treadle.dialects.loop import LANE_CONVERSIONS, LaneCompareOp, LaneConvertOp, LaneSelectOp, RoundPairOp
from treadle.dialects.loop.vector import LANE_COMPARISONS
from treadle.schedules.work.rules import IN_MEMORY, MASKED, NARROW


class Unsupported(Exception):
    """The loop has something that has no vector form."""


_IN_F32 = (
    arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.DivfOp, arith.NegfOp, arith.MaximumfOp, arith.MinimumfOp,
    arith.CmpfOp,
)  # fmt: skip
"""Operations that f32 computes for narrow floats as if at once: it has more than twice their bits, so that rounding its
result gives what rounding the exact one does. Source: Figueroa, "When is double rounding innocuous?", 1995."""
_LOGIC = (arith.AndIOp, arith.OrIOp, arith.XOrIOp)
_SUMS = (arith.AddiOp, arith.SubiOp, arith.MuliOp)
_OF_I32 = (*_SUMS, *_LOGIC, arith.ShRSIOp)
_CONVERSIONS = (
    arith.ExtSIOp, arith.ExtUIOp, arith.SIToFPOp, arith.UIToFPOp, arith.FPToSIOp, arith.FPToUIOp,
)  # fmt: skip


def is_elementwise(op: Operation) -> bool:
    """Whether an operation computes one value from its operands alone: it reads no memory and makes no buffer."""
    return only_computes(op) and len(op.results) == 1


def check_access(type: VectorType, stride: int, mask: SSAValue | None) -> None:
    """Unsupported for vectors other than of f32 unless their elements are consecutive, and for some lanes of i32."""
    element = type.element_type
    if element != f32 and (stride != 1 or (mask is not None and element not in MASKED)):
        raise Unsupported(f"some lanes of {type}, or lanes {stride} elements apart")


def vector_form(op: Operation, operands: Sequence[SSAValue]) -> Operation:
    """The operation on vectors (the condition of a choice may be a scalar).

    Unsupported where there is none: floats other than f32, integers but for sums, products, bits and shifts to the
    right of i32 and the logic of i1, and conversions, but for those between f16 or bf16 in memory and f32, and of
    `loop.lane_convert`.
    """
    result = op.results[0].type
    if isinstance(op, arith.ExtFOp | arith.TruncFOp) and {op.input.type, result} in [{each, f32} for each in NARROW]:
        return _conversion(op, operands[0])
    if isinstance(op, _CONVERSIONS):
        return _of_numbers(op, operands[0])
    if isinstance(op, RoundPairOp):
        return RoundPairOp(*operands)
    if isinstance(op, arith.CmpfOp):
        return _comparison(op, operands)
    if isinstance(op, arith.SelectOp) and result in IN_MEMORY:
        condition, then, otherwise = operands
        if isinstance(condition.type, VectorType):
            if result not in MASKED:
                raise Unsupported(f"a choice of lanes of {result}")
            return LaneSelectOp(condition, then, otherwise)
        return arith.SelectOp(condition, then, otherwise)
    types: list[Attribute] = [operand.type for operand in op.operands]
    has_form = result == f32 or (result == i1 and isinstance(op, _LOGIC)) or (result == i32 and isinstance(op, _OF_I32))
    if set(types) != {result} or not has_form:
        said = ", ".join(map(str, types))
        raise Unsupported(f"{op.name} of {said}")
    return type(op).create(
        operands=operands,
        result_types=[operands[0].type],
        properties=dict(op.properties),
        attributes=dict(op.attributes),
    )


def _of_numbers(op: Operation, operand: SSAValue) -> Operation:
    """A conversion of integers, or to them. Those of signless types, which count as signed, may mean the bits alone."""
    assert isinstance(operand.type, VectorType)
    source, target = operand.type.element_type, op.results[0].type
    takes_unsigned = isinstance(op, arith.ExtUIOp | arith.UIToFPOp)
    if target not in LANE_CONVERSIONS.get(source, ()) or (source != f32 and takes_unsigned != (source == ui8)):
        raise Unsupported(f"{op.name} of {source} to {target}")
    return LaneConvertOp(operand, VectorType(target, operand.type.get_shape()))


def _conversion(op: arith.ExtFOp | arith.TruncFOp, operand: SSAValue) -> Operation:
    assert isinstance(operand.type, VectorType)
    wanted = VectorType(op.result.type, operand.type.get_shape())
    return type(op).create(
        operands=[operand], result_types=[wanted], properties=dict(op.properties), attributes=dict(op.attributes)
    )


def _comparison(op: arith.CmpfOp, operands: Sequence[SSAValue]) -> Operation:
    kind = arith.CMPF_COMPARISON_OPERATIONS[op.predicate.value.data]
    if kind not in LANE_COMPARISONS or op.lhs.type != f32:
        raise Unsupported(f"a comparison '{kind}' of {op.lhs.type}")
    return LaneCompareOp(kind, *operands)


def compute_wide(block: Block) -> None:
    """Has operations on f16 and bf16 computed in f32, of which there are vectors."""
    for op in list(block.walk()):
        if not isinstance(op, _IN_F32) or not any(operand.type in NARROW for operand in op.operands):
            continue
        before = [arith.ExtFOp(value, f32) if value.type in NARROW else None for value in op.operands]
        operands = [value if wide is None else wide.result for value, wide in zip(op.operands, before, strict=True)]
        narrow = op.results[0].type
        wide = op.create(
            operands=operands,
            result_types=[f32 if narrow in NARROW else narrow],
            properties=dict(op.properties),
            attributes=dict(op.attributes),
        )
        new = [*filter(None, before), wide, *([arith.TruncFOp(wide.results[0], narrow)] if narrow in NARROW else [])]
        for each in new:
            each.location = op.location
        new[-1].results[0].name_hint = op.results[0].name_hint
        Rewriter.replace_op(op, new)


__all__ = ["Unsupported", "check_access", "compute_wide", "is_elementwise", "vector_form"]
