"""The scalar dialect: arithmetic on numbers that `arith` and `math` lack."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import (
    AnyFloat,
    AnyFloatConstr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    Signedness,
    VectorType,
)
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import ConstantLike, Pure
from xdsl.utils.exceptions import VerifyException


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


@irdl_op_definition
class UnsignedConstantOp(arith.ConstantOp):
    """A number of an unsigned type: those of `arith.constant` are signless.

    ```mlir
    %c = scalar.constant 200 : ui8
    ```
    Rejected: a number whose type is not unsigned, or that is not the result's.
    """

    name = "scalar.constant"
    value = prop_def(IntegerAttr)  # pyright: ignore[reportAssignmentType]
    result = result_def(IntegerType)
    traits = traits_def(Pure(), ConstantLike())
    assembly_format = None  # the parent's checks and syntax are those of signless numbers

    def verify_(self) -> None:
        if self.value.type != self.result.type or not is_unsigned(self.result.type):
            raise VerifyException(f"scalar.constant {self.value} gives {self.result.type}: expected its unsigned type")

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        printer.print_string(" ")
        printer.print_attribute(self.value)

    @classmethod
    def parse(cls, parser: Parser) -> UnsignedConstantOp:
        attributes = parser.parse_optional_attr_dict()
        position = parser.pos
        value = parser.parse_attribute()
        if not isinstance(value, IntegerAttr):
            parser.raise_error(f"scalar.constant gives a number of an unsigned type, not {value}", position)
        op = cls(value)
        op.attributes.update(attributes)
        return op


def is_unsigned(type: Attribute) -> bool:
    """Whether a type is one of unsigned integers."""
    return isinstance(type, IntegerType) and type.signedness.data is Signedness.UNSIGNED


def number_op(value: float, type: Attribute) -> arith.ConstantOp:
    """The operation that gives a number of a scalar type."""
    if isinstance(type, AnyFloat):
        return arith.ConstantOp(FloatAttr(float(value), type))
    assert isinstance(type, IntegerType | IndexType)
    number = IntegerAttr(int(value), type)
    return UnsignedConstantOp(number) if is_unsigned(type) else arith.ConstantOp(number)


SCALAR = Dialect("scalar", [FmodOp, UnsignedConstantOp])

_ARITHMETIC = (arith.Arith.name, math.Math.name, SCALAR.name)


def is_arithmetic(op: Operation) -> bool:
    """Whether an operation computes numbers from numbers, and neither reads nor writes memory."""
    return op.dialect_name() in _ARITHMETIC


__all__ = ["SCALAR", "FmodOp", "UnsignedConstantOp", "is_arithmetic", "is_unsigned", "number_op"]
