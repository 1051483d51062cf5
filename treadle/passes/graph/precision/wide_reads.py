"""Readers of a rounded tensor that widen it again, and may read what it was rounded from."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import CastOp, ReshapeOp, TransposeOp
from treadle.dialects.graph.definition import int_list


def read_wide(rounded: SSAValue, exact: SSAValue) -> None:
    """Has readers that widen a rounded tensor read the exact one instead, also behind operators that only move it."""
    for reader in list(dict.fromkeys(use.operation for use in rounded.uses)):
        if isinstance(reader, CastOp) and reader.type == exact.type:
            Rewriter.replace_op(reader, [], [exact])
        elif isinstance(reader, ReshapeOp | TransposeOp):
            moved = _moved(reader, exact)
            moved.location, moved.result.name_hint = reader.location, reader.result.name_hint
            Rewriter.insert_op(moved, InsertPoint.after(reader))
            read_wide(reader.result, moved.result)
            for op in (reader, moved):
                if not op.result.uses:
                    Rewriter.erase_op(op)


def _moved(op: ReshapeOp | TransposeOp, value: SSAValue) -> ReshapeOp | TransposeOp:
    """The operator on another tensor of the same shape."""
    if isinstance(op, ReshapeOp):
        return ReshapeOp(value, op.shape)
    return TransposeOp(value, int_list(op.properties, "perm"))


__all__ = ["read_wide"]
