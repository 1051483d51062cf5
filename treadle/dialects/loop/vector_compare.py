"""Comparisons and selections of vectors, lane by lane, which upstream's `arith` has for scalars only."""

from __future__ import annotations

from xdsl.dialects.arith import CMPF_COMPARISON_OPERATIONS
from xdsl.dialects.builtin import AnyFloat, StringAttr, VectorType
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.loop.strided_access import mask_of, parse_vector

LANE_COMPARISONS = ("oeq", "ogt", "oge", "olt", "ole", "une")
"""The kinds of comparison: those of C's operators, so that a lane with NaN is true for `une` only."""


@irdl_op_definition
class LaneCompareOp(IRDLOperation):
    """The lanes in which two vectors of floats compare as the kind says.

    ```mlir
    %m = loop.lane_compare ogt, %x, %y : vector<16xf32>
    ```
    Rejected: a kind that is none of `LANE_COMPARISONS`, operands that are no floats or of two types, and a result
    that is not their mask.
    """

    name = "loop.lane_compare"
    kind = prop_def(StringAttr)
    lhs = operand_def(VectorType)
    rhs = operand_def(VectorType)
    mask = result_def(VectorType)
    traits = traits_def(Pure())

    def __init__(self, kind: str, lhs: SSAValue, rhs: SSAValue):
        assert isinstance(lhs.type, VectorType)
        super().__init__(operands=[lhs, rhs], properties={"kind": StringAttr(kind)}, result_types=[mask_of(lhs.type)])

    @property
    def code(self) -> int:
        """The number that `arith.cmpf` has for the kind."""
        return CMPF_COMPARISON_OPERATIONS.index(self.kind.data)

    def verify_(self) -> None:
        type = self.lhs.type
        assert isinstance(type, VectorType)
        if self.kind.data not in LANE_COMPARISONS:
            raise VerifyException(
                f"'{self.kind.data}' compares no lanes: expected one of {', '.join(LANE_COMPARISONS)}"
            )
        if self.rhs.type != type or not isinstance(type.get_element_type(), AnyFloat):
            raise VerifyException(f"{type} and {self.rhs.type}: expected two vectors of floats of one type")
        if self.mask.type != mask_of(type):
            raise VerifyException(f"the mask of {type} is {mask_of(type)}, not {self.mask.type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.kind.data}, ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_attribute(self.lhs.type)

    @classmethod
    def parse(cls, parser: Parser) -> LaneCompareOp:
        kind = parser.parse_identifier("a kind of comparison")
        parser.parse_punctuation(",")
        lhs = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        rhs = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        type = parse_vector(parser)
        return cls(kind, parser.resolve_operand(lhs, type), parser.resolve_operand(rhs, type))


@irdl_op_definition
class LaneSelectOp(IRDLOperation):
    """The first vector where the mask is on, the second elsewhere.

    ```mlir
    %z = loop.lane_select %m, %x, %y : vector<16xf32>
    ```
    Rejected: vectors of two types, a mask of another length.
    """

    name = "loop.lane_select"
    mask = operand_def(VectorType)
    lhs = operand_def(VectorType)
    rhs = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def __init__(self, mask: SSAValue, lhs: SSAValue, rhs: SSAValue):
        super().__init__(operands=[mask, lhs, rhs], result_types=[lhs.type])

    def verify_(self) -> None:
        type = self.result.type
        assert isinstance(type, VectorType)
        if self.lhs.type != type or self.rhs.type != type:
            raise VerifyException(f"{self.lhs.type} or {self.rhs.type}: expected two of {type}")
        if self.mask.type != mask_of(type):
            raise VerifyException(f"the mask of {type} is {mask_of(type)}, not {self.mask.type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> LaneSelectOp:
        mask = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        lhs = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        rhs = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        type = parse_vector(parser)
        return cls(
            parser.resolve_operand(mask, mask_of(type)),
            parser.resolve_operand(lhs, type),
            parser.resolve_operand(rhs, type),
        )
