"""A counter at which the blocks of a launch arrive: the last one sees what all of them have stored."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, i1, i32, i64
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.effects import Convergent, OrdersMemory
from treadle.dialects.loop.access import parse_indices, parse_memref, print_address
from treadle.dialects.loop.attributes import Space, SpaceAttr, type_of


@irdl_op_definition
class ArriveOp(IRDLOperation):
    """The block counts itself at a counter; true in all of its threads if it is the last of `blocks` blocks.

    ```mlir
    %last = loop.arrive %counters[%tile] of 4 : memref<16xi32, #loop.space<zeroed>>
    ```
    All threads of a block reach it together, with one counter, and wait for one another. It is a release and an
    acquire: what the blocks that arrived earlier have stored in device memory is visible in the last block after it.
    The last one resets the counter to 0. Blocks do not wait for other blocks, so that they may run in any order.
    Rejected: a counter that is no element of a row of i32 in space `zeroed`; less than one block.
    """

    name = "loop.arrive"
    counters = operand_def(MemRefType)
    index = operand_def(IndexType())
    blocks = prop_def(IntegerAttr)
    result = result_def(i1)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect(), OrdersMemory(), Convergent())

    def __init__(self, counters: SSAValue, index: SSAValue, blocks: int):
        super().__init__(operands=[counters, index], properties={"blocks": IntegerAttr(blocks, i64)}, result_types=[i1])

    @property
    def count(self) -> int:
        """Blocks that arrive at the counter."""
        return self.blocks.value.data

    def verify_(self) -> None:
        type = type_of(self.counters)
        if type.get_element_type() != i32 or type.get_num_dims() != 1 or type.memory_space != SpaceAttr(Space.ZEROED):
            raise VerifyException(f"counters in {type}: expected a row of i32 in #loop.space<zeroed>")
        if self.count < 1:
            raise VerifyException(f"the last of {self.count} blocks: expected at least one")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_address(printer, self.counters, [self.index])
        printer.print_string(f" of {self.count} : ")
        printer.print_attribute(self.counters.type)

    @classmethod
    def parse(cls, parser: Parser) -> ArriveOp:
        counters = parser.parse_unresolved_operand()
        position = parser.pos
        indices = parse_indices(parser)
        if len(indices) != 1:
            parser.raise_error(f"{len(indices)} indices of a counter: expected 1", position)
        parser.parse_keyword("of")
        blocks = parser.parse_integer(allow_boolean=False)
        type = parse_memref(parser)
        return cls(parser.resolve_operand(counters, type), indices[0], blocks)
