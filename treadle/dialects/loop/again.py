"""An index that the compiler of the printed text does not recognise."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import Pure


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


__all__ = ["AgainOp"]
