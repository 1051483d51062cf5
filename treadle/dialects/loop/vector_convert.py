"""Conversions of vectors, lane by lane, which upstream's `arith` has for scalars and between floats only."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import VectorType, f32, i8, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.dtypes import ui8
from treadle.dialects.loop.strided_access import parse_vector

LANE_CONVERSIONS: Mapping[Attribute, tuple[Attribute, ...]] = {
    i8: (i32, f32),
    ui8: (i32, f32),
    i32: (f32,),
    f32: (i8, ui8),
}
"""What numbers of a type become: wider integers, the nearest floats, the nearest bytes."""


@irdl_op_definition
class LaneConvertOp(IRDLOperation):
    """Each lane as a number of another type.

    ```mlir
    %y = loop.lane_convert %x : vector<16xui8> to vector<16xf32>
    ```
    Integers become what they are, or the nearest float; the whole part of a float becomes the nearest byte, 0 if it is
    NaN. Rejected: types that are not in `LANE_CONVERSIONS`, another number of lanes.
    """

    name = "loop.lane_convert"
    source = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def __init__(self, source: SSAValue, result_type: VectorType):
        super().__init__(operands=[source], result_types=[result_type])

    def verify_(self) -> None:
        source, result = self.source.type, self.result.type
        assert isinstance(source, VectorType) and isinstance(result, VectorType)
        if source.get_shape() != result.get_shape():
            raise VerifyException(f"{source} as {result}: expected as many lanes")
        targets = LANE_CONVERSIONS.get(source.element_type, ())
        if result.element_type not in targets:
            wanted = " or ".join(map(str, targets)) or f"a vector of {', '.join(map(str, LANE_CONVERSIONS))}"
            raise VerifyException(f"{source} as {result}: expected {wanted}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.source)
        printer.print_string(" : ")
        printer.print_attribute(self.source.type)
        printer.print_string(" to ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> LaneConvertOp:
        source = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        type = parse_vector(parser)
        parser.parse_keyword("to")
        return cls(parser.resolve_operand(source, type), parse_vector(parser))


__all__ = ["LANE_CONVERSIONS", "LaneConvertOp"]
