"""What one operation on floats costs, in simple operations."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import VectorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph.dtypes import is_float
from treadle.dialects.scalar import FUNCTION_OF

_DIVISION = 10.0


def op_cost(op: Operation) -> float:
    """The cost of an operation on floats or on vectors of them; 0 for others.

    A multiplication that is fused with the addition that uses it is free, a division or a function such as exp costs
    as much as the simple operations that take its time.
    """
    if not op.results or not _gives_floats(op.results[0]) or not op.name.startswith(("arith.", "math.")):
        return 0.0
    if isinstance(op, arith.ConstantOp) or _is_fused(op):
        return 0.0
    function = FUNCTION_OF.get(type(op))
    return _DIVISION if isinstance(op, arith.DivfOp) else 1.0 if function is None else float(function.cost)


def _gives_floats(value: SSAValue) -> bool:
    type = value.type
    return is_float(type.get_element_type() if isinstance(type, VectorType) else type)


def _is_fused(op: Operation) -> bool:
    """Whether it is a multiplication that is fused with the addition that uses it."""
    if not isinstance(op, arith.MulfOp):
        return False
    uses = list(op.result.uses)
    return len(uses) == 1 and isinstance(uses[0].operation, arith.AddfOp | arith.SubfOp)


__all__ = ["op_cost"]
