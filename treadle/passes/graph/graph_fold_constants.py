"""graph-fold-constants: what depends on constants only is computed now."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import BroadcastOp, ConstantOp, Operator, ReshapeOp, SliceOp, TransposeOp
from treadle.dialects.graph.constant import constant_array
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.evaluate import evaluate
from treadle.passes.graph.rewriting import Array, constant_op, is_repeated

SMALL = 64 * 1024
"""A result of at most this many bytes is always folded."""
GROWTH = 2
"""A larger one is folded if it has at most this many times its operands' bytes."""
MOST_REPEATED = 1 << 24
"""Elements of the largest result that is computed to see whether it is one element that is repeated."""
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
    `GROWTH`). One element that is repeated is the broadcast of a number, however large the result: zero points of
    symmetric weights become 0. `graph.compute` stays too: it is how a packed constant is read.

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
        elif isinstance(op, Operator) and _is_known(op, known) and not (keep_tied and _moves_tied(op, known)):
            array = _folded(op, known)
            if array is not None:
                known[op.result] = array
                folded.append(op)
    for op in reversed(folded):
        if op.result.uses:
            op.result.replace_all_uses_with(_constant(op, known))
        Rewriter.erase_op(op)
    for op in list(block.ops):
        if isinstance(op, ConstantOp) and not op.result.uses:
            Rewriter.erase_op(op)


def _is_known(op: Operator, known: dict[SSAValue, Array]) -> bool:
    """Whether all operands are constants."""
    return bool(op.operands) and DYNAMIC_INDEX not in op.shape and all(o in known for o in op.operands)


def _folded(op: Operator, known: dict[SSAValue, Array]) -> Array | None:
    """What an operator on constants becomes; None if it stays."""
    if _fits(op, known):
        return evaluate(op, known)
    # Of the broadcast of a number nothing is left to fold.
    if (isinstance(op, BroadcastOp) and known[op.x].size == 1) or op.type.element_count() > MOST_REPEATED:
        return None
    array = evaluate(op, known) if all(is_repeated(known[o]) for o in op.operands) else None
    return array if array is not None and is_repeated(array) else None


def _fits(op: Operator, known: dict[SSAValue, Array]) -> bool:
    """Whether the result is small, or not much larger than the operands."""
    nbytes = op.type.element_count() * byte_width(op.type.get_element_type())
    return nbytes <= max(SMALL, GROWTH * sum(known[o].nbytes for o in op.operands))


def _constant(op: Operator, known: dict[SSAValue, Array]) -> SSAValue:
    """What gives an operator's result now: a constant, or the broadcast of one element."""
    array, fits = known[op.result], _fits(op, known)
    new: list[Operation] = [constant_op(array if fits else array.reshape(-1)[0])]
    if not fits:
        new.append(BroadcastOp(new[0].results[0], array.shape))
    for each in new:
        each.location = op.location
        each.results[0].name_hint = op.result.name_hint
    Rewriter.insert_op(new, InsertPoint.before(op))
    return new[-1].results[0]


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
