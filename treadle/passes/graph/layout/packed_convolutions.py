"""Dense convolutions of images in blocks of channels, by filters in panels of a CPU core's matrix unit."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import TensorType, bf16
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import CastOp, ConvOp, PackedConvOp, PadOp, TransposeOp
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of, int_list
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.passes.graph.layout.blocked_convolutions import is_dense
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, shape_of
from treadle.passes.graph.tiles.panels import panels_of

BLOCK = 32
"""Channels of bf16 that a row of a tile holds: those of a block of images."""


def has_panels(op: ConvOp) -> bool:
    """Whether a convolution is a dense one of bf16, of two dimensions, by constant filters."""
    is_plain = op.type.get_element_type() == bf16 and len(op.shape) == 4 and is_dense(op)
    return is_plain and constant_of(op.w) is not None


def has_few_channels(op: ConvOp) -> bool:
    """Whether the pixels under a row of the window fit into a block."""
    return shape_of(op.w)[-1] * _lanes_of_pixel(op) <= BLOCK


def _lanes_of_pixel(op: ConvOp) -> int:
    """The channels, up to a power of two."""
    return 1 << (shape_of(op.w)[1] - 1).bit_length()


def packed_rows(op: ConvOp) -> list[Operation]:
    """The same of an image `[N, C, H, W]` of few channels, as a convolution of windows of one column: a row of the
    window is a pixel's block of channels."""
    weights = constant_of(op.w)
    assert weights is not None, "has_panels asks for constant filters"
    oc, c, height, width = shape_of(op.w)
    lanes = _lanes_of_pixel(op)
    strides, pads, dilations = (int_list(op.properties, name) for name in ("strides", "pads", "dilations"))
    # A pixel's channels are neighbours, and so are pixels; those that a whole block holds are there.
    needed = (op.shape[3] - 1) * strides[1] + (BLOCK // lanes - 1) * dilations[1] + 1
    after = max(pads[3], needed - shape_of(op.x)[3] - pads[1])
    zero = constant_op(np.zeros((), numpy_dtype(bf16)))
    turned = TransposeOp(op.x, [0, 2, 3, 1])
    pixels = PadOp("constant", turned.result, zero.result, [0, 0, pads[1], 0, 0, 0, after, lanes - c])

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        n, _, row, column, lane = index
        offset = b.mul(b.div(lane, lanes), dilations[1])
        return b.at(pixels.result, [n, row, b.add(b.mul(column, strides[1]), offset), b.mod(lane, lanes)])

    n, _, rows, _ = shape_of(op.x)
    blocks = compute_of(TensorType(bf16, [n, 1, rows, op.shape[3], BLOCK]), element, "im2col")
    filters = np.zeros((oc, width, lanes, height), np.uint16)
    filters[:, :, :c] = weights.view(np.uint16).transpose(0, 3, 1, 2)
    panels = constant_op(panels_of(_rows(filters.reshape(oc, -1, height, 1).view(weights.dtype))))
    panels.result.name_hint = op.w.name_hint
    extents, vertical = (width * lanes, oc), [(strides[0], 1), (pads[0], 0, pads[2], 0), (dilations[0], 1)]
    total = PackedConvOp(blocks.result, panels.result, extents, (height, 1), *vertical)
    return [zero, turned, pixels, blocks, panels, total, CastOp(total.result, bf16)]


def packed(op: ConvOp, x: SSAValue) -> list[Operation]:
    """The operations of which the last gives the form of a convolution of an image whose form is `x`."""
    weights = constant_of(op.w)
    assert weights is not None, "has_panels asks for constant filters"
    panels = constant_op(panels_of(_rows(weights)))
    panels.result.name_hint = op.w.name_hint
    oc, ic, *kernel = shape_of(op.w)
    strides, pads, dilations = (int_list(op.properties, name) for name in ("strides", "pads", "dilations"))
    total = PackedConvOp(x, panels.result, (ic, oc), kernel, strides, pads, dilations)
    return [panels, total, CastOp(total.result, bf16)]


def _rows(weights: Array) -> Array:
    """Filters `[OC, C, KH, KW]` as `[blocks * KH * KW * BLOCK, OC]`; those of channels that are missing are zeros."""
    oc, ic, *kernel = weights.shape
    whole = np.zeros((oc, -(-ic // BLOCK) * BLOCK, *kernel), weights.dtype)
    whole[:, :ic] = weights
    # Of integers, since NumPy moves elements of other libraries' types one by one.
    bits = whole.view(np.uint16).reshape(oc, -1, BLOCK, *kernel).transpose(1, 3, 4, 2, 0)
    return np.ascontiguousarray(bits).reshape(whole.shape[1] * prod(kernel), oc).view(weights.dtype)


__all__ = ["BLOCK", "has_few_channels", "has_panels", "packed", "packed_rows"]
