"""The order of dimensions in which channels are neighbours, and definitions under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from xdsl.dialects.builtin import StringAttr, TensorType
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import AtOp, ComputeOp, Operator, definition
from treadle.passes.graph.graph_define import operator_word

T = TypeVar("T")
Permutation: TypeAlias = tuple[int, ...]
"""Result dimension `d` is source dimension `permutation[d]`, as in `graph.transpose`."""


def to_last(rank: int) -> Permutation:
    """`[N, C, spatial...]` to `[N, spatial..., C]`."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> Permutation:
    """`[N, spatial..., C]` to `[N, C, spatial...]`."""
    return (0, rank - 1, *range(1, rank - 1))


def permuted(values: Sequence[T], permutation: Permutation) -> list[T]:
    """What belongs to each dimension, in the order of the permuted ones."""
    return [values[d] for d in permutation]


def permuted_definition(
    op: Operator | ComputeOp, permutation: Permutation, operands: Mapping[SSAValue, tuple[SSAValue, Permutation]]
) -> ComputeOp:
    """The detached definition of an operator whose result, and some of whose operands, are permuted.

    operands: what replaces an operand, and how it is permuted
    """
    compute = op.clone() if isinstance(op, ComputeOp) else definition(op)
    words = compute.operators if isinstance(op, ComputeOp) else StringAttr(operator_word(op))
    for at in compute.reads():
        if at.source in operands:
            source, order = operands[at.source]
            read = AtOp(source, permuted(at.indices, order), at.predicate, at.otherwise)
            read.location = at.location
            Rewriter.insert_op(read, InsertPoint.before(at))
            Rewriter.replace_op(at, [], [read.result])
    args = compute.body.block.args
    uses = [list(arg.uses) for arg in args]
    for position, d in enumerate(permutation):
        for use in uses[d]:
            use.operation.operands[use.index] = args[position]
    type = TensorType(compute.type.get_element_type(), permuted(compute.shape, permutation))
    body = compute.detach_region(0)
    compute.erase()
    return ComputeOp(body, type, None if words is None else words.data)


__all__ = ["Permutation", "permuted", "permuted_definition", "to_first", "to_last"]
