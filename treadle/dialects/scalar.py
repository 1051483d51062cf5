"""The scalar dialect: arithmetic on numbers that `arith` and `math` lack."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloatConstr, VectorType
from xdsl.ir import Dialect, Operation, SSAValue
from xdsl.irdl import IRDLOperation, VarConstraint, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import Pure


@irdl_op_definition
class FmodOp(IRDLOperation):
    """The remainder of C's `fmod`: `x - n y` for the whole number `n = x / y` rounded towards zero, exactly.

    ```mlir
    %r = scalar.fmod %x, %y : f32
    ```
    The sign is that of `x`, the size below that of `y`; NaN where `x` is infinite or `y` is 0, `x` where `y` is
    infinite. Rejected: operands and a result that are not of one float type, or of one vector type of floats.
    """

    name = "scalar.fmod"
    T: ClassVar = VarConstraint("T", AnyFloatConstr | VectorType.constr(AnyFloatConstr))
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($result)"

    def __init__(self, lhs: SSAValue, rhs: SSAValue):
        super().__init__(operands=[lhs, rhs], result_types=[lhs.type])


SCALAR = Dialect("scalar", [FmodOp])

_ARITHMETIC = (arith.Arith.name, math.Math.name, SCALAR.name)


def is_arithmetic(op: Operation) -> bool:
    """Whether an operation computes numbers from numbers, and neither reads nor writes memory."""
    return op.dialect_name() in _ARITHMETIC


__all__ = ["SCALAR", "FmodOp", "is_arithmetic"]
