"""graph-fold-constants: what depends on constants only is computed now."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import ConstantOp, Operator, ReshapeOp, SliceOp, TransposeOp
from treadle.dialects.graph.constant import constant_array
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.evaluate import evaluate
from treadle.passes.graph.rewriting import Array, constant_op

SMALL = 64 * 1024
"""A result of at most this many bytes is always folded."""
GROWTH = 2
"""A larger one is folded if it has at most this many times its operands' bytes."""
LARGE = 8 << 20
"""Bytes from which a constant is worth keeping in one copy."""


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

    keep_tied: do not transpose, reshape or slice a large constant that another operator reads as it is (an embedding
        that is also the weight of a language model's head): it would be stored twice. Left in place, the move becomes a
        prologue, which is free where a template reads both layouts equally well.
    """

    name = "graph-fold-constants"
    keep_tied: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                fold_constants(function.body.block, self.keep_tied)


def fold_constants(block: Block, keep_tied: bool = False) -> None:
    """Folds in one function. Only values that something else reads become constants (and blobs)."""
    known: dict[SSAValue, Array] = {}
    folded: list[Operator] = []
    for op in block.ops:
        if isinstance(op, ConstantOp):
            known[op.result] = constant_array(op)
        elif isinstance(op, Operator) and _folds(op, known) and not (keep_tied and _moves_tied(op, known)):
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


def _moves_tied(op: Operator, known: dict[SSAValue, Array]) -> bool:
    """Whether an operator moves a large constant that another one reads together with what is not constant."""
    if not isinstance(op, TransposeOp | ReshapeOp | SliceOp) or known[op.x].nbytes < LARGE:
        return False
    others = (use.operation for use in op.x.uses if use.operation is not op)
    return any(operand not in known and not _is_constant(operand) for other in others for operand in other.operands)


def _is_constant(value: SSAValue) -> bool:
    """Whether a value that comes later in the block depends on constants only."""
    op = value.owner
    return isinstance(op, ConstantOp) or (
        isinstance(op, Operator) and bool(op.operands) and all(map(_is_constant, op.operands))
    )


__all__ = ["GraphFoldConstantsPass", "fold_constants"]
