"""`loop.dispatch`: one of several kernels, by the extents of a call."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import TensorType, i64
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_attr_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.dispatch_tree import PredictedAttr, TreeAttr, parse_dispatch, print_dispatch
from treadle.dialects.model_nodes import NamesNodes

EXTENT = TensorType(i64, [])
"""The type of an extent."""


@irdl_op_definition
class DispatchOp(IRDLOperation, NamesNodes):
    """Launches one of its kernels, the one whose number the tree gives for the extents.

    ```mlir
    %y = loop.dispatch #schedule.tree<e0 <= 16 ? 0 : 1> (%seq : tensor<i64>) {
      %a = loop.kernel @matmul ... { ... }
      %b = loop.kernel @matmul ... { ... }
    } : tensor<512x768xf32>
    ```
    `e0` is the first of the extents, which are @main's. The region holds one kernel an alternative, in their order, or
    before those are complete the `graph.fused` that becomes it; the results are those of the kernel that runs.
    Rejected: leaves that are not just the numbers of the kernels, an extent that is no `tensor<i64>`, kernels that give
    other types than the results.
    """

    name = "loop.dispatch"
    tree = prop_def(TreeAttr)
    predicted = opt_attr_def(PredictedAttr)
    extents = var_operand_def(TensorType)
    kernels = region_def("single_block")
    outputs = var_result_def(TensorType)
    traits = traits_def(NoTerminator(), RecursiveMemoryEffect())

    def __init__(self, tree: TreeAttr, extents: Sequence[SSAValue], kernels: Region, types: Sequence[Attribute]):
        super().__init__(operands=[extents], properties={"tree": tree}, regions=[kernels], result_types=[types])

    @property
    def alternatives(self) -> Sequence[Operation]:
        return list(self.kernels.block.ops)

    def verify_(self) -> None:
        self.tree.check(len(self.alternatives), len(self.extents))
        if self.predicted is not None:
            self.predicted.check(len(self.alternatives))
        if any(type != EXTENT for type in self.extents.types):
            raise VerifyException(f"extents of types {', '.join(map(str, self.extents.types))}: expected {EXTENT}")
        for kernel in self.alternatives:
            types = [result.type for result in kernel.results]
            if types != list(self.outputs.types):
                raise VerifyException(
                    f"{kernel.name} gives {', '.join(map(str, types)) or 'nothing'}: expected "
                    f"{', '.join(map(str, self.outputs.types))}"
                )

    def print(self, printer: Printer) -> None:
        print_dispatch(printer, self.tree, self.extents, self.kernels, self.attributes)
        printer.print_string(" : ")
        printer.print_list(self.outputs.types, printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> DispatchOp:
        tree, extents, kernels, attributes = parse_dispatch(parser)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        op = cls(tree, extents, kernels, types)
        op.attributes |= attributes
        return op


__all__ = ["EXTENT", "DispatchOp"]
