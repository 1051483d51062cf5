"""Which element of an epilogue belongs to which element of the anchor, proved from the definitions.

A group with several epilogues is sound if every epilogue is bijective in a member that it reads, and if all elements
that it reads of members come from one and the same element of the anchor: then they are available where that element is
stored.  Pure analysis: no IR is changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from treadle.dialects.graph import ComputeOp
from treadle.index.expr import Expr, const
from treadle.index.mixed_radix import DigitSum, digits_of, index_digits, strides
from treadle.passes.graph.definition_analysis import (
    element_index,
    is_bijective_in,
    is_injective,
    operand_variables,
    shape_of,
    tensors_read,
)


@dataclass(frozen=True)
class Alignment:
    """Where a tensor's elements come from.

    tensor: a member of the group; root: the tensor that the anchor gives
    at: the index of the root's element that belongs to an element of `tensor`, over its `operand_variables`
    source: the member through which the tensor is computed
    beside: it reads no member, but has the root's shape, and is computed element by element beside it
    """

    tensor: SSAValue
    root: SSAValue
    at: tuple[Expr, ...]
    source: SSAValue
    beside: bool = False

    @staticmethod
    def of(root: SSAValue) -> Alignment:
        """Of the anchor's own result."""
        return Alignment(root, root, tuple(operand_variables(root)), root)

    @property
    def keeps_order(self) -> bool:
        """Whether the elements lie in memory in the order of the root's."""
        shape = shape_of(self.tensor)
        variables = dict(zip(_keys(shape), index_digits(shape), strict=True))
        own = digits_of(_position(operand_variables(self.tensor), shape), variables)
        return own is not None and own == digits_of(_position(self.at, shape_of(self.root)), variables)


def aligned(compute: ComputeOp, members: Mapping[SSAValue, Alignment]) -> Alignment | str:
    """The alignment of `compute`, which may read `members`; else why it is no epilogue."""
    if not is_injective(compute):
        return "the user is an anchor itself"
    read = [tensor for tensor in tensors_read(compute) if tensor in members]
    if not read:
        return _beside(compute, next(iter(members.values())).root)
    source = next((tensor for tensor in read if is_bijective_in(compute, tensor)), None)
    if source is None:
        return "the user is not bijective in it"
    indices = [_root_index(compute, members[tensor]) for tensor in read]
    root, first = members[source].root, indices[read.index(source)]
    for tensor, index in zip(read, indices, strict=True):
        if first is None or index is None or members[tensor].root is not root or not _same(compute, first, index, root):
            return "the user also reads elements of the group that are not available there"
    assert first is not None
    own: dict[Hashable, Expr] = dict(zip(compute.body.block.args, operand_variables(compute.result), strict=True))
    return Alignment(compute.result, root, tuple(e.substitute(own) for e in first), source)


def _beside(compute: ComputeOp, root: SSAValue) -> Alignment | str:
    if compute.shape != shape_of(root):
        return f"the shapes {list(compute.shape)} and {list(shape_of(root))} differ"
    return Alignment(compute.result, root, tuple(operand_variables(root)), root, beside=True)


def _root_index(compute: ComputeOp, member: Alignment) -> list[Expr] | None:
    """The index of the root's element from which the elements that `compute` reads of a member come, over its
    indices."""
    where = element_index(compute, member.tensor)
    if where is None:
        return None
    read: dict[Hashable, Expr] = dict(zip(_keys(shape_of(member.tensor)), where, strict=True))
    return [e.substitute(read) for e in member.at]


def _same(compute: ComputeOp, a: Sequence[Expr], b: Sequence[Expr], root: SSAValue) -> bool:
    """Whether two indices of the root are proved equal for every element of `compute`."""
    if list(a) == list(b):
        return True
    variables: dict[Hashable, DigitSum] = dict(zip(compute.body.block.args, index_digits(compute.shape), strict=True))
    first, second = (digits_of(_position(index, shape_of(root)), variables) for index in (a, b))
    return first is not None and first == second


def _keys(shape: Sequence[int]) -> list[Hashable]:
    """The keys of `operand_variables`."""
    return [("operand", d) for d in range(len(shape))]


def _position(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The row-major position of an index."""
    return sum((e * stride for e, stride in zip(index, strides(shape), strict=True)), const(0))


__all__ = ["Alignment", "aligned"]
