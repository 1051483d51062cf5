"""Asking for memory before it is read."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType, MemRefType
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect

from treadle.dialects.loop.access import parse_memref


@irdl_op_definition
class PrefetchOp(IRDLOperation):
    """Has the cache line of an element fetched, which is so many elements behind the buffer's first one.

    ```mlir
    loop.prefetch %B at %offset : memref<3072x48xf32>
    ```
    It changes no result. The element may lie outside of the buffer, in front of it or behind: nothing is read there.
    """

    name = "loop.prefetch"
    buffer = operand_def(MemRefType)
    offset = operand_def(IndexType())
    traits = traits_def(MemoryReadEffect())

    def __init__(self, buffer: SSAValue, offset: SSAValue):
        super().__init__(operands=[buffer, offset])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.buffer)
        printer.print_string(" at ")
        printer.print_ssa_value(self.offset)
        printer.print_string(" : ")
        printer.print_attribute(self.buffer.type)

    @classmethod
    def parse(cls, parser: Parser) -> PrefetchOp:
        buffer = parser.parse_unresolved_operand()
        parser.parse_keyword("at")
        offset = parser.parse_operand(IndexType())
        type = parse_memref(parser)
        return cls(parser.resolve_operand(buffer, type), offset)


__all__ = ["PrefetchOp"]
