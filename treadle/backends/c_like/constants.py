"""Values that follow from constants."""

from __future__ import annotations

from typing import cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IndexType, IntegerAttr
from xdsl.ir import Operation, SSAValue


def constant_integer(value: SSAValue) -> int | None:
    """The number that an integer value is, if it is a constant."""
    if isinstance(value.owner, arith.ConstantOp) and isinstance(value.owner.value, IntegerAttr):
        return value.owner.value.value.data
    return None


def folded_integer(op: Operation) -> int | None:
    """The sum, difference or product of two constants of type index."""
    if not isinstance(op, arith.AddiOp | arith.SubiOp | arith.MuliOp) or not isinstance(op.result.type, IndexType):
        return None
    lhs, rhs = constant_integer(op.lhs), constant_integer(op.rhs)
    if lhs is None or rhs is None:
        return None
    if isinstance(op, arith.MuliOp):
        return lhs * rhs
    return lhs + rhs if isinstance(op, arith.AddiOp) else lhs - rhs


def splat_number(op: arith.ConstantOp) -> float | None:
    """The number that all lanes of a vector constant are."""
    if not isinstance(op.value, DenseIntOrFPElementsAttr) or not op.value.is_splat():
        return None
    return cast(float, op.value.get_values()[0])
