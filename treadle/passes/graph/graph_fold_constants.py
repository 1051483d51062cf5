"""graph-fold-constants: what depends on constants only is computed now."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import ConstantOp, Operator
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.evaluate import evaluate
from treadle.dialects.graph.store import constant_array
from treadle.passes.graph.rewriting import Array, constant_op

SMALL = 64 * 1024
"""A result of at most this many bytes is always folded."""
GROWTH = 2
"""A larger one is folded if it has at most this many times its operands' bytes."""


@dataclass(frozen=True)
class GraphFoldConstantsPass(ModulePass):
    """Replaces operators whose operands are all constants by constants.

    ```mlir
    %a = graph.constant #graph.inline<"1.0, 2.0"> : tensor<2xf32>
    %y = graph.unary "neg" %a : (tensor<2xf32>) -> tensor<2xf32>
    ```
    becomes
    ```mlir
    %y = graph.constant #graph.inline<"-1.0, -2.0"> : tensor<2xf32>
    ```
    A `graph.broadcast` of a few values to millions stays: folding never makes constants much larger (`SMALL`,
    `GROWTH`). `graph.compute` stays too: it is how a packed constant is read.
    """

    name = "graph-fold-constants"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                fold_constants(function.body.block)


def fold_constants(block: Block) -> None:
    """Folds in one function. Only values that something else reads become constants (and blobs)."""
    known: dict[SSAValue, Array] = {}
    folded: list[Operator] = []
    for op in block.ops:
        if isinstance(op, ConstantOp):
            known[op.result] = constant_array(op)
        elif isinstance(op, Operator) and _folds(op, known):
            known[op.result] = evaluate(op, known)
            folded.append(op)
    for op in reversed(folded):
        if op.result.uses:
            constant = constant_op(known[op.result])
            constant.location = op.location
            constant.result.name_hint = op.result.name_hint
            Rewriter.insert_op(constant, InsertPoint.before(op))
            op.result.replace_all_uses_with(constant.result)
        Rewriter.erase_op(op)
    for op in list(block.ops):
        if isinstance(op, ConstantOp) and not op.result.uses:
            Rewriter.erase_op(op)


def _folds(op: Operator, known: dict[SSAValue, Array]) -> bool:
    if not op.operands or DYNAMIC_INDEX in op.shape or any(o not in known for o in op.operands):
        return False
    nbytes = op.type.element_count() * byte_width(op.type.get_element_type())
    return nbytes <= max(SMALL, GROWTH * sum(known[o].nbytes for o in op.operands))


__all__ = ["GraphFoldConstantsPass", "fold_constants"]
