"""Dense convolutions of images in blocks of channels, by filters in panels of a CPU core's matrix unit."""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import bf16
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import CastOp, ConvOp, PackedConvOp
from treadle.dialects.graph.definition import int_list
from treadle.passes.graph.layout.blocked_convolutions import is_dense
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, shape_of
from treadle.passes.graph.tiles.panels import panels_of

BLOCK = 32
"""Channels of bf16 that a row of a tile holds: those of a block of images."""


def has_panels(op: ConvOp) -> bool:
    """Whether a convolution is a dense one of bf16, of two dimensions, by constant filters."""
    is_plain = op.type.get_element_type() == bf16 and len(op.shape) == 4 and is_dense(op)
    return is_plain and constant_of(op.w) is not None


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


__all__ = ["BLOCK", "has_panels", "packed"]
