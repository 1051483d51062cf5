"""graph-deduplicate: what is computed twice from the same operands is computed once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import BinaryOp, CastOp, ConstantOp, Operator, UnaryOp, WhereOp
from treadle.dialects.location import fused_location


@dataclass(frozen=True)
class GraphDeduplicatePass(ModulePass):
    """Drops an operator (or a constant) that equals an earlier one of the same operands and properties.

    ```mlir
    %a = graph.reshape %x {shape = array<i64: 2, 4>} : (tensor<8xf32>) -> tensor<2x4xf32>
    %b = graph.reshape %x {shape = array<i64: 2, 4>} : (tensor<8xf32>) -> tensor<2x4xf32>
    ```
    becomes `%a` alone. Afterwards readers of equal tensors read one value, by which `graph-merge-matmuls` finds them.
    Elementwise operators stay: each is cheaper inside its reader's kernel than stored for two.
    """

    name = "graph-deduplicate"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                _deduplicate(function.body.block)


def _deduplicate(block: Block) -> None:
    known: dict[Hashable, Operation] = {}
    for op in list(block.ops):
        if not isinstance(op, Operator | ConstantOp) or isinstance(op, UnaryOp | BinaryOp | WhereOp | CastOp):
            continue
        key = (op.name, tuple(op.operands), tuple(sorted(op.properties.items())), op.results[0].type)
        first = known.setdefault(key, op)
        if first is not op:
            first.location = fused_location((first.location, op.location))
            Rewriter.replace_op(op, [], [first.results[0]])


__all__ = ["GraphDeduplicatePass"]
