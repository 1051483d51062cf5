"""Reductions of a warp without shared memory."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, f32, f64, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AnyAttr,
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
from xdsl.traits import NoMemoryEffect
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.effects import Convergent

WARP = 32
"""Lanes of a warp: the threads `32 w` to `32 w + 31` of a block."""
EXCHANGED: tuple[Attribute, ...] = (f32, f64, i32)
"""The types of values that lanes exchange."""
KINDS = ("add", "mul", "max", "min")


def lanes_fold(kind: str, type: Attribute) -> bool:
    """Whether the lanes of a warp can fold values of this type."""
    return kind in KINDS and type in EXCHANGED


@irdl_op_definition
class WarpReduceOp(IRDLOperation):
    """The fold of a value over each group of `width` consecutive lanes of a warp, which every lane of the group
    receives.

    ```mlir
    %s = loop.warp_reduce add %v over 32 : f32
    ```
    All lanes of the warp reach it together. The fold is a tree: lanes fold with those `width / 2` away, then with those
    `width / 4` away, down to their neighbours, and all of them get the same bits. Rejected: a kind other than add, mul,
    max, min; a width other than 2, 4, 8, 16, 32; a type other than f32, f64 and i32.
    """

    name = "loop.warp_reduce"
    T: ClassVar = VarConstraint("T", AnyAttr())
    kind = prop_def(StringAttr)
    width = prop_def(IntegerAttr)
    value = operand_def(T)
    result = result_def(T)
    traits = traits_def(NoMemoryEffect(), Convergent())

    def __init__(self, kind: str, value: SSAValue, width: int):
        properties = {"kind": StringAttr(kind), "width": IntegerAttr(width, i64)}
        super().__init__(operands=[value], properties=properties, result_types=[value.type])

    @property
    def lanes(self) -> int:
        """Lanes of a group."""
        return self.width.value.data

    def verify_(self) -> None:
        if self.kind.data not in KINDS:
            raise VerifyException(f"unknown reduction {self.kind.data!r}: expected one of {', '.join(KINDS)}")
        if self.lanes not in (2, 4, 8, 16, 32):
            raise VerifyException(f"groups of {self.lanes} lanes: expected 2, 4, 8, 16 or 32")
        if self.value.type not in EXCHANGED:
            raise VerifyException(f"lanes exchange {', '.join(map(str, EXCHANGED))}, not {self.value.type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.kind.data} ")
        printer.print_ssa_value(self.value)
        printer.print_string(f" over {self.lanes} : ")
        printer.print_attribute(self.value.type)

    @classmethod
    def parse(cls, parser: Parser) -> WarpReduceOp:
        kind = parser.parse_identifier()
        value = parser.parse_unresolved_operand()
        parser.parse_keyword("over")
        width = parser.parse_integer(allow_boolean=False, allow_negative=False)
        parser.parse_punctuation(":")
        return cls(kind, parser.resolve_operand(value, parser.parse_type()), width)
