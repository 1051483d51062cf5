"""Images `[N, C / lanes, spatial..., lanes]`: dense convolutions are matrix products, those of groups of whole blocks
a batch of products, depthwise ones their definition.

Rows of a product are pixels of all images, columns output channels. The terms of an image in blocks are `(block,
kernel..., lane)`: consecutive terms are neighbours, and the windows of one block are read before the next one's. An
image of few channels is read as it is. Source: Georganas et al., "Anatomy of high-performance deep learning
convolutions on SIMD architectures", SC 2018, section II.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from xdsl.dialects.builtin import f32, i1, i32
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.graph import (
    BinaryOp,
    ComputeOp,
    ConvOp,
    ConvTransposeOp,
    MatmulOp,
    Operator,
    PadOp,
    ReductionOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.passes.graph.layout.blocked_tiles import (
    has_few_channels,
    has_panels,
    has_tiles,
    in_tiles,
    packed,
    packed_rows,
)
from treadle.passes.graph.layout.images import CHANNELS, Form, HasForm, ImageLayout, operands_of
from treadle.passes.graph.layout.layout import Layout, definition_in, filters, windows, zeros_after
from treadle.passes.graph.rewriting import constant_op, shape_of, tensor

_MOST_WASTE, _MOST_WASTE_OF_TILES = 4 / 3, 2
"""Channels of whole blocks for each channel that there is, at most; a matrix unit computes whole tiles in any case."""


def blocked(rank: int, lanes: int, dim: int = CHANNELS) -> Layout:
    """`[..., C, rest...]` as `[..., ceil(C / lanes), rest..., lanes]`, where C is the extent of dimension `dim`."""
    return Layout((*range(rank), dim), lanes)


@dataclass(frozen=True)
class BlockedChannels(ImageLayout):
    """Images `[N, C / lanes, spatial..., lanes]`.

    outputs_of: the outputs along a dimension of a tile in which a convolution that has tiles is computed; None for one
        that is computed directly
    elements: the element types of images
    packs: whether dense convolutions of bf16 take a matrix unit's panels, for which lanes are BLOCK
    """

    lanes: int
    outputs_of: Callable[[ConvOp], int | None] = lambda _: None
    elements: Sequence[Attribute] = (f32,)
    packs: bool = False

    def of(self, rank: int) -> Layout:
        return blocked(rank, self.lanes)

    def accepts(self, op: Operator | ComputeOp) -> bool:
        elements = [tensor(x).get_element_type() for x in op.operands if isinstance(op, UnaryOp | BinaryOp | WhereOp)]
        if any(element not in (*self.elements, i1) for element in elements):
            return False
        return op.type.get_element_type() in self.elements and self._fills_blocks(op.shape[CHANNELS])

    def value_of(self, op: Operator | ComputeOp, x: SSAValue) -> list[Operation]:
        """Rows `[N, C]`: what is reduced over pixels, or an image of one pixel."""
        if len(op.shape) != CHANNELS + 1 or shape_of(operands_of(op)[0])[:2] != op.shape:
            return []
        n, blocks, *spatial, lanes = shape_of(x)
        if isinstance(op, ReductionOp):
            ops: list[Operation] = [ReductionOp(op.kind.data, x, int_list(op.properties, "dims"), keep=False)]
        elif isinstance(op, ReshapeOp) and prod(spatial) == 1:
            ops = []
        else:
            return []
        rows = ReshapeOp(ops[-1].results[0] if ops else x, [n, blocks * lanes])
        return [*ops, rows, SliceOp(rows.result, [0, 0], op.shape, [1, 1])]

    def _fills_blocks(self, channels: int) -> bool:
        most = _MOST_WASTE_OF_TILES if self.packs else _MOST_WASTE
        return ceil(channels / self.lanes) * self.lanes <= most * channels

    def convolution(self, op: ConvOp | ConvTransposeOp, form: Form, has_form: HasForm) -> list[Operation]:
        if isinstance(op, ConvTransposeOp):
            return []
        if op.groups.value.data == 1:
            return self._dense(op, form, has_form)
        if has_groups_of_blocks(op, self.lanes):
            return self._grouped(op, form(op.x))
        return self._depthwise(op, form(op.x)) if _is_depthwise(op) and has_form(op.x) else []

    def _dense(self, op: ConvOp, form: Form, has_form: HasForm) -> list[Operation]:
        in_blocks = has_form(op.x) or shape_of(op.x)[CHANNELS] % self.lanes == 0
        if self.packs and has_panels(op) and (in_blocks or self._fills_blocks(shape_of(op.x)[CHANNELS])):
            return packed(op, form(op.x))
        if self.packs and has_panels(op) and has_few_channels(op):
            return packed_rows(op)
        outputs = self.outputs_of(op) if in_blocks and op.type.get_element_type() == f32 and has_tiles(op) else None
        if outputs is not None:
            return in_tiles(op, form(op.x), outputs)
        n, oc, *spatial = op.shape
        rank, channels, missing = len(op.shape), shape_of(op.w)[1], -oc % self.lanes
        image, terms = Layout(tuple(range(rank))), Layout(tuple(range(rank - 1)))
        if in_blocks:
            image, terms = self.of(rank), Layout((*range(1, rank - 1), 0))
        # What lies in lanes beyond the channels is bytes, whatever they are: 0 times any is 0, and blocks are whole.
        if in_blocks and (channels % self.lanes == 0 or op.type.get_element_type() == i32):
            channels += -channels % self.lanes
            terms = blocked(rank - 1, self.lanes, 0)
        border = _bordered(op, form(op.x) if in_blocks else op.x)
        x = border[-1].results[0] if border else form(op.x) if in_blocks else op.x
        rows, columns = windows(op, x, image, terms, channels, stored=True), filters(op, terms, channels)
        if missing:
            columns += zeros_after(columns[-1].results[0], 1, missing)
        product = MatmulOp(rows.result, columns[-1].results[0])
        apart = ReshapeOp(product.result, [n, *spatial, (oc + missing) // self.lanes, self.lanes])
        turned = TransposeOp(apart.result, [0, rank - 1, *range(1, rank - 1), rank])
        return [*border, rows, *columns, product, apart, turned]

    def _grouped(self, op: ConvOp, x: SSAValue) -> list[Operation]:
        """Of groups of whole blocks."""
        n, oc, *spatial = op.shape
        rank, groups, channels = len(op.shape), op.groups.value.data, shape_of(op.w)[1]
        terms, border = blocked(rank - 1, self.lanes, 0), _bordered(op, x)
        image = border[-1].results[0] if border else x
        rows, columns = windows(op, image, self.of(rank), terms, channels, stored=True), filters(op, terms, channels)
        product = MatmulOp(rows.result, columns[-1].results[0])
        blocks = ReshapeOp(product.result, [groups, n, *spatial, oc // groups // self.lanes, self.lanes])
        images = TransposeOp(blocks.result, [1, 0, rank, *range(2, rank), rank + 1])
        result = ReshapeOp(images.result, [n, oc // self.lanes, *spatial, self.lanes])
        return [*border, rows, *columns, product, blocks, images, result]

    def _depthwise(self, op: ConvOp, x: SSAValue) -> list[Operation]:
        image, weights = self.of(len(op.shape)), blocked(len(op.shape), self.lanes, 0)
        turned = weights.enter(op.w)
        return [*turned, definition_in(op, image, {op.x: (x, image), op.w: (turned[-1].results[0], weights)})]


def has_groups_of_blocks(op: ConvOp, lanes: int) -> bool:
    """Whether each output channel depends on a group of several, which are whole blocks on both sides."""
    groups = op.groups.value.data
    return groups > 1 and not (shape_of(op.w)[1] % lanes or op.shape[CHANNELS] // groups % lanes)


def _is_depthwise(op: ConvOp) -> bool:
    """Whether each output channel depends on the input channel of the same number only."""
    return op.groups.value.data == op.shape[CHANNELS] == shape_of(op.x)[CHANNELS]


def _bordered(op: ConvOp, x: SSAValue) -> list[Operation]:
    """The image, or its form, stored with the border of zeros under the windows; nothing for a convolution without
    padding."""
    pads, rest = int_list(op.properties, "pads"), len(shape_of(x)) - len(op.shape)
    if not any(pads):
        return []
    rank = len(pads) // 2
    zero = constant_op(np.zeros((), numpy_dtype(op.type.get_element_type())))
    whole = [0] * rest
    return [zero, PadOp("constant", x, zero.result, [0, 0, *pads[:rank], *whole, 0, 0, *pads[rank:], *whole])]
