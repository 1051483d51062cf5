"""The layout in which a dimension is cut into blocks whose lanes are neighbours, and definitions under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from xdsl.dialects.builtin import IndexType, StringAttr, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import AtOp, ComputeOp, Operator, PadOp, ReshapeOp, SliceOp, TransposeOp, definition
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import floordiv, mod, var
from treadle.passes.graph.graph_define import operator_word
from treadle.passes.graph.rewriting import constant_op, shape_of, tensor


@dataclass(frozen=True)
class Blocks:
    """`[..., C, rest...]` as `[..., ceil(C / lanes), rest..., lanes]`, where C is the extent of dimension `dim`.

    Lanes beyond the last element of the last block hold anything, and are read by nothing but such lanes.
    """

    dim: int
    lanes: int

    def shape(self, shape: Sequence[int]) -> list[int]:
        """The shape of the form of a tensor."""
        before, extent, after = shape[: self.dim], shape[self.dim], shape[self.dim + 1 :]
        return [*before, ceil(extent / self.lanes), *after, self.lanes]

    def enter(self, x: SSAValue) -> list[Operation]:
        """The operations of which the last gives the form of `x`; lanes beyond its elements are zeros."""
        shape = list(shape_of(x))
        ops: list[Operation] = []
        if missing := -shape[self.dim] % self.lanes:
            ops += zeros_after(x, self.dim, missing)
            x = ops[-1].results[0]
            shape[self.dim] += missing
        apart = ReshapeOp(x, [*shape[: self.dim], shape[self.dim] // self.lanes, self.lanes, *shape[self.dim + 1 :]])
        order = [d for d in range(len(shape) + 1) if d != self.dim + 1]
        return [*ops, apart, TransposeOp(apart.result, [*order, self.dim + 1])]

    def leave(self, form: SSAValue, shape: Sequence[int]) -> list[Operation]:
        """The operations of which the last gives the tensor, of a shape, whose form this is."""
        rank, extent = len(shape), shape[self.dim]
        order = [*range(self.dim + 1), rank, *range(self.dim + 1, rank)]
        turned = TransposeOp(form, order)
        whole = ceil(extent / self.lanes) * self.lanes
        together = ReshapeOp(turned.result, [*shape[: self.dim], whole, *shape[self.dim + 1 :]])
        if whole == extent:
            return [turned, together]
        return [turned, together, SliceOp(together.result, [0] * rank, shape, [1] * rank)]


def zeros_after(x: SSAValue, dim: int, count: int) -> list[Operation]:
    """So many zeros after the end of a dimension."""
    zero = constant_op(np.zeros((), numpy_dtype(tensor(x).get_element_type())))
    after = [count if d == dim else 0 for d in range(len(shape_of(x)))]
    return [zero, PadOp("constant", x, zero.result, [*[0] * len(after), *after])]


def blocked_definition(
    op: Operator | ComputeOp, blocks: Blocks, operands: Mapping[SSAValue, tuple[SSAValue, Blocks]]
) -> ComputeOp:
    """The detached definition of an operator whose result, and some of whose operands, lie in blocks.

    operands: the form that replaces an operand, and its blocks
    """
    compute = op.clone() if isinstance(op, ComputeOp) else definition(op)
    words = compute.operators if isinstance(op, ComputeOp) else StringAttr(operator_word(op))
    for at in compute.reads():
        if at.source in operands:
            source, of_source = operands[at.source]
            _read_blocks(at, source, of_source)
    body = compute.body.block
    whole = body.args[blocks.dim]
    block, lane = body.insert_arg(IndexType(), blocks.dim), body.insert_arg(IndexType(), len(body.args))
    first = body.first_op
    assert first is not None
    emitter = IndexEmitter(InsertPoint.before(first), location=op.location)
    position = emitter.emit(var(block, 0, None) * blocks.lanes + var(lane, 0, blocks.lanes - 1))
    whole.replace_all_uses_with(position)
    body.erase_arg(whole)
    type = TensorType(compute.type.get_element_type(), blocks.shape(compute.shape))
    region = compute.detach_region(0)
    compute.erase()
    return ComputeOp(region, type, None if words is None else words.data)


def _read_blocks(at: AtOp, source: SSAValue, blocks: Blocks) -> None:
    """Replaces a read of a tensor by one of its form."""
    emitter = IndexEmitter(InsertPoint.before(at), location=at.location)
    indices, position = list(at.indices), var(at.indices[blocks.dim], 0, None)
    indices[blocks.dim] = emitter.emit(floordiv(position, blocks.lanes))
    read = AtOp(source, [*indices, emitter.emit(mod(position, blocks.lanes))], at.predicate, at.otherwise)
    read.location = at.location
    Rewriter.insert_op(read, InsertPoint.before(at))
    Rewriter.replace_op(at, [], [read.result])


__all__ = ["Blocks", "blocked_definition", "zeros_after"]
