"""Convolutions whose result, and mostly whose image, lies in blocks of channels: dense ones as matrix products, those
of groups of whole blocks as a batch of products, depthwise ones as their definition.

Rows of a product are pixels of all images, columns output channels. The terms of an image in blocks are `(block,
kernel..., lane)`: consecutive terms are neighbours, and the windows of one block are read before the next one's. An
image of few channels is read as it is. Source: Georganas et al., "Anatomy of high-performance deep learning
convolutions on SIMD architectures", SC 2018, section II.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from xdsl.dialects.builtin import IndexType, StringAttr, TensorType, i32
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import (
    AtOp,
    ComputeOp,
    ConvOp,
    MatmulOp,
    Operator,
    PadOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    definition,
)
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of, int_list
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import floordiv, mod, var
from treadle.passes.graph.graph_define import operator_word
from treadle.passes.graph.rewriting import constant_op, shape_of, tensor

# The layout in which a dimension is cut into blocks whose lanes are neighbours, and definitions under it.


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


CHANNELS = 1
"""The dimension of an image that is cut into blocks."""


def is_dense(op: ConvOp) -> bool:
    """Whether each output channel depends on every input channel."""
    return op.groups.value.data == 1


def has_groups_of_blocks(op: ConvOp, lanes: int) -> bool:
    """Whether each output channel depends on a group of several, which are whole blocks on both sides."""
    groups = op.groups.value.data
    return groups > 1 and not (shape_of(op.w)[1] % lanes or op.shape[CHANNELS] // groups % lanes)


def is_depthwise(op: ConvOp) -> bool:
    """Whether each output channel depends on the input channel of the same number only."""
    return op.groups.value.data == op.shape[CHANNELS] == shape_of(op.x)[CHANNELS]


def dense(op: ConvOp, x: SSAValue, lanes: int) -> list[Operation]:
    """The operations of which the last gives the form of a dense convolution of `x`: of the image, or of its form."""
    n, oc, *spatial = op.shape
    rank, missing = len(spatial), -oc % lanes
    border = bordered(op, x)
    image = border[-1].results[0] if border else x
    channels, more = op.w, []
    if op.type.get_element_type() == i32 and len(shape_of(x)) > len(op.shape):
        # What lies in lanes beyond the channels is bytes, whatever they are: 0 times any is 0, and blocks are whole.
        channels, more = _in_blocks(op.w, lanes)
    rows = _im2col(op, channels, image)
    filters = _filters(op, channels, image)
    if missing:
        filters += zeros_after(filters[-1].results[0], 1, missing)
    product = MatmulOp(rows.result, filters[-1].results[0])
    apart = ReshapeOp(product.result, [n, *spatial, (oc + missing) // lanes, lanes])
    turned = TransposeOp(apart.result, [0, rank + 1, *range(1, rank + 1), rank + 2])
    return [*border, rows, *more, *filters, product, apart, turned]


def _in_blocks(w: SSAValue, lanes: int) -> tuple[SSAValue, list[Operation]]:
    """Filters of whole blocks of channels, with zeros behind, and the operations that give them."""
    missing = -shape_of(w)[1] % lanes
    more = zeros_after(w, 1, missing) if missing else []
    return (more[-1].results[0] if more else w), more


def grouped(op: ConvOp, x: SSAValue, lanes: int) -> list[Operation]:
    """The same of a convolution of groups of whole blocks, of an image whose form is `x`."""
    n, oc, *spatial = op.shape
    _, ic, *kernel = shape_of(op.w)
    groups, rank = op.groups.value.data, len(spatial)
    border = bordered(op, x)
    rows = _im2col(op, op.w, border[-1].results[0] if border else x)
    apart = ReshapeOp(op.w, [groups, oc // groups, ic // lanes, lanes, *kernel])
    turned = TransposeOp(apart.result, [0, 2, *range(4, 4 + rank), 3, 1])
    filters = ReshapeOp(turned.result, [groups, ic * prod(kernel), oc // groups])
    product = MatmulOp(rows.result, filters.result)
    blocks = ReshapeOp(product.result, [groups, n, *spatial, oc // groups // lanes, lanes])
    images = TransposeOp(blocks.result, [1, 0, rank + 2, *range(2, rank + 2), rank + 3])
    result = ReshapeOp(images.result, [n, oc // lanes, *spatial, lanes])
    return [*border, rows, apart, turned, filters, product, blocks, images, result]


def depthwise(op: ConvOp, x: SSAValue, lanes: int) -> list[Operation]:
    """The same of a depthwise convolution of an image whose form is `x`."""
    images, filters = Blocks(CHANNELS, lanes), Blocks(0, lanes)
    weights = filters.enter(op.w)
    operands = {op.x: (x, images), op.w: (weights[-1].results[0], filters)}
    return [*weights, blocked_definition(op, images, operands)]


def bordered(op: ConvOp, x: SSAValue) -> list[Operation]:
    """The image, or its form, stored with the border of zeros under the windows; nothing for a convolution without
    padding."""
    pads, rest = int_list(op.properties, "pads"), len(shape_of(x)) - len(op.shape)
    if not any(pads):
        return []
    rank = len(pads) // 2
    zero = constant_op(np.zeros((), numpy_dtype(op.type.get_element_type())))
    whole = [0] * rest
    return [zero, PadOp("constant", x, zero.result, [0, 0, *pads[:rank], *whole, 0, 0, *pads[rank:], *whole])]


def _in_whole_blocks(op: ConvOp, w: SSAValue, x: SSAValue) -> bool:
    """Whether `x` is an image's form, of whose blocks filters take all lanes."""
    return len(shape_of(x)) > len(op.shape) and shape_of(w)[1] % shape_of(x)[-1] == 0


def _filters(op: ConvOp, w: SSAValue, x: SSAValue) -> list[Operation]:
    """The weights as `[terms, OC]`."""
    oc, ic, *kernel = shape_of(w)
    rank, weights = len(kernel), w
    ops: list[Operation] = []
    if _in_whole_blocks(op, w, x):
        lanes = shape_of(x)[-1]
        ops.append(ReshapeOp(w, [oc, ic // lanes, lanes, *kernel]))
        weights, order = ops[-1].results[0], [1, *range(3, 3 + rank), 2, 0]
    elif len(shape_of(x)) > len(op.shape):
        order = [*range(2, 2 + rank), 1, 0]
    else:
        order = [1, *range(2, 2 + rank), 0]
    turned = TransposeOp(weights, order)
    return [*ops, turned, ReshapeOp(turned.result, [ic * prod(kernel), oc])]


def _im2col(op: ConvOp, w: SSAValue, x: SSAValue) -> ComputeOp:
    """The windows of a bordered image, or of its form, as rows `[N * pixels, terms]`; of several groups, each of whole
    blocks, `[groups, N * pixels, terms]`."""
    n, _, *spatial = op.shape
    _, ic, *kernel = shape_of(w)
    strides, dilations = (int_list(op.properties, name) for name in ("strides", "dilations"))
    in_blocks, whole = len(shape_of(x)) > len(op.shape), _in_whole_blocks(op, w, x)
    lanes, groups = shape_of(x)[-1], op.groups.value.data

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        image, *position = b.delinearize(index[-2], [n, *spatial])
        if whole:
            block, *offset, lane = b.delinearize(index[-1], [ic // lanes, *kernel, lanes])
        elif in_blocks:
            *offset, channel = b.delinearize(index[-1], [*kernel, ic])
            block, lane = b.div(channel, lanes), b.mod(channel, lanes)
        else:
            block, *offset = b.delinearize(index[-1], [ic, *kernel])
            lane = None
        if groups > 1:
            block = b.add(b.mul(index[0], ic // lanes), block)
        steps = zip(position, strides, offset, dilations, strict=True)
        where = [b.add(b.mul(at, stride), b.mul(k, dilation)) for at, stride, k, dilation in steps]
        return b.at(x, [image, block, *where, *([] if lane is None else [lane])])

    shape = [n * prod(spatial), ic * prod(kernel)]
    type = TensorType(tensor(op.x).get_element_type(), [groups, *shape] if groups > 1 else shape)
    return compute_of(type, element, "im2col")
