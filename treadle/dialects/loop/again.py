"""Indices and buffers that the compiler of the printed text does not recognise."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, MemRefType, NoneAttr
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.effects import SameBuffer


@irdl_op_definition
class AgainOp(IRDLOperation):
    """The same index, as one that the C compiler knows nothing of: what is loaded there is loaded again.

    ```mlir
    %later = loop.again %at
    ```
    Two loads at equal indices without a store between them become one, whose value stays in a register or on the stack
    until its last use. Where the second load costs less than that, its index goes through this operation.
    """

    name = "loop.again"
    index = operand_def(IndexType())
    result = result_def(IndexType())
    traits = traits_def(Pure())
    assembly_format = "$index attr-dict"

    def __init__(self, index: SSAValue):
        super().__init__(operands=[index], result_types=[IndexType()])


@irdl_op_definition
class AgainBufferOp(IRDLOperation):
    """The same buffer as one of one dimension, at an address that the C compiler knows nothing of.

    ```mlir
    %again = loop.again_buffer %tiles : memref<4x8xf32> -> memref<32xf32>
    ```
    Of a large buffer of the kernel's own the compiler knows that it lies at a constant distance from the thread's
    pointer; GCC 12 then takes registers for addresses that tiles of sums have no register for.

    Rejected: a result that is not the buffer's elements in row-major order.
    """

    name = "loop.again_buffer"
    buffer = operand_def(MemRefType)
    result = result_def(MemRefType)
    traits = traits_def(Pure(), SameBuffer())
    assembly_format = "$buffer `:` type($buffer) `->` type($result) attr-dict"

    def __init__(self, buffer: SSAValue):
        super().__init__(operands=[buffer], result_types=[_flat_type(buffer)])

    def verify_(self) -> None:
        if self.result.type != _flat_type(self.buffer):
            raise VerifyException(f"a result {self.result.type}: expected {_flat_type(self.buffer)}")


def _flat_type(buffer: SSAValue) -> MemRefType:
    """Of the buffer's elements, in one dimension; VerifyException where they lie in another order."""
    type = buffer.type
    assert isinstance(type, MemRefType)
    if not isinstance(type.layout, NoneAttr) or DYNAMIC_INDEX in type.get_shape():
        raise VerifyException(f"a buffer {type}: expected static extents, in row-major order")
    return MemRefType(type.get_element_type(), (prod(type.get_shape()),), memory_space=type.memory_space)


__all__ = ["AgainBufferOp", "AgainOp"]
