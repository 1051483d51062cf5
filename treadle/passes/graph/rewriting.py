"""Shared by the passes on graph operators: constants, replacement that keeps locations, and what casts round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import CastOp, ConstantOp, Operator, ReshapeOp, TransposeOp
from treadle.dialects.graph.constant import constant_array, constant_attribute
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import element_type, is_float_dtype
from treadle.dialects.location import MOST_NODES, fused_location

Array = NDArray[Any]


def tensor(value: SSAValue) -> TensorType[Attribute]:
    """The type of a value that is a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The extents of a value that is a tensor; -1 stands for a symbolic one."""
    return tensor(value).get_shape()


def constant_of(value: SSAValue) -> Array | None:
    """The array of a `graph.constant`'s result (read-only); None for any other value."""
    return constant_array(value.owner) if isinstance(value.owner, ConstantOp) else None


def constant_op(array: Array) -> ConstantOp:
    """A detached `graph.constant`; a large array goes to the store."""
    return ConstantOp(constant_attribute(array), TensorType(element_type(array.dtype), array.shape))


def insert_constant(rewriter: PatternRewriter, before: Operation, array: Array) -> SSAValue:
    """Inserts a `graph.constant` before an operation, at its location."""
    op = constant_op(array)
    op.location = before.location
    rewriter.insert(op, InsertPoint.before(before))
    return op.result


def replace(rewriter: PatternRewriter, old: Operation, new: SSAValue | Operation | Sequence[Operation]) -> None:
    """Replaces an operation of one result by a value, or by operations of which the last gives the result.

    New operations get the nodes of the old one, and of those that only computed its operands and are removed with it;
    the last one takes its name.
    """
    if isinstance(new, SSAValue):
        rewriter.replace(old, [], [new])
        return
    operations = [new] if isinstance(new, Operation) else list(new)
    location = fused_location(op.location for op in _replaced(old, operations))
    for op in operations:
        op.location = location
    operations[-1].results[0].name_hint = old.results[0].name_hint
    rewriter.insert(operations, InsertPoint.before(old))
    rewriter.replace(old, [], [operations[-1].results[0]])


def _replaced(old: Operation, new: Sequence[Operation]) -> list[Operation]:
    """The operations that `new` replaces: `old`, and the operators before it whose results nothing else reads."""
    kept = {operand.owner for op in new for inner in op.walk() for operand in inner.operands}
    gone = [old]
    for op in gone:
        for owner in (operand.owner for operand in op.operands):
            if not isinstance(owner, Operator) or owner in kept or owner in gone:
                continue
            if len(gone) <= MOST_NODES and all(use.operation in gone for use in owner.result.uses):
                gone.append(owner)
    return gone[::-1]


def replace_with(old: Operator, new: Sequence[Operation], *, name_all: bool = False) -> None:
    """Outside of walks that rewrite patterns: replaces an operator by operations, of which the last gives its result
    and takes its name (or all take it), and erases what only computed its operands."""
    for op in new:
        op.location = old.location
    for op in new if name_all else new[-1:]:
        op.results[0].name_hint = old.result.name_hint
    sources = [operand.owner for operand in old.operands]
    Rewriter.insert_op(new, InsertPoint.before(old))
    Rewriter.replace_op(old, [], [new[-1].results[0]])
    while sources:
        source = sources.pop()
        if isinstance(source, Operator | ConstantOp) and source.parent is not None and not source.result.uses:
            sources += [operand.owner for operand in source.operands]
            Rewriter.erase_op(source)


def is_uniform(array: Array, value: float) -> bool:
    """Whether every element is `value` (0 is either zero)."""
    return array.size > 0 and bool(np.all(array == value))


def is_repeated(array: Array) -> bool:
    """Whether there are elements, all of which are the same number, of the same sign."""
    flat = array.reshape(-1)
    if flat.size == 0 or flat[0] != flat[-1] or not is_uniform(flat, flat[0]):
        return False
    return not is_float_dtype(flat.dtype) or bool(np.all(np.signbit(flat) == np.signbit(flat[0])))


# Readers of a rounded tensor that widen it again, and may read what it was rounded from.


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


__all__ = [
    "Array", "constant_of", "constant_op", "insert_constant", "is_repeated", "is_uniform", "read_wide", "replace",
    "replace_with", "shape_of", "tensor",
]  # fmt: skip
