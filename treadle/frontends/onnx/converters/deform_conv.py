"""DeformConv: a convolution whose windows read at positions that are computed.

Source: Zhu et al., "Deformable ConvNets v2: more deformable, better results", CVPR 2019; outside of the picture is 0.
"""

from __future__ import annotations

from math import prod

import numpy as np

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import bound_of
from treadle.frontends.common.products import plus_bias
from treadle.frontends.common.sampling import linear_taps, sampled
from treadle.frontends.common.window import Window
from treadle.frontends.onnx.converters.window import read_window
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


@converts("DeformConv", since=19)
def deform_conv(node: Node, g: GraphBuilder) -> Tensor:
    """`x [N, C, spatial...]`, read where `offset [N, offset_group * kernel * dims, out...]` moves a window's elements,
    times `mask [N, offset_group * kernel, out...]` if there is one."""
    x, w, offset, bias, mask = (node.optional(n) for n in range(5))
    if x is None or w is None or offset is None:
        raise node.error("an input is missing", "an input, weights and offsets")
    groups, parts = node.int("group", 1), node.int("offset_group", 1)
    kernel = w.shape[2:]
    if (given := node.ints("kernel_shape")) is not None and tuple(given) != kernel:
        raise node.error(f"kernel_shape {given} contradicts the weights' {list(kernel)}", str(list(kernel)))
    window = read_window(node, x.shape, kernel)
    out, size = offset.shape[2:], prod(kernel)
    _check(node, x, w, offset, mask, window)
    node.reserve((size, prod(out), 4), np.dtype(np.float64))
    batch, channels = x.shape[:2]
    taps = [linear_taps(g, _coordinates(g, offset, window, d, parts), extent) for d, extent in enumerate(x.shape[2:])]
    pictures = g.reshape(x, (batch * parts, channels // parts, prod(x.shape[2:])))
    rows = g.reshape(g.transpose(pictures, (0, 2, 1)), (batch * parts * prod(x.shape[2:]), channels // parts))
    start = g.reshape(g.iota(batch * parts, bound_of(prod(x.shape[2:]))), (batch * parts, 1))
    columns = sampled(g, rows, start, x.shape[2:], taps)
    if mask is not None:
        columns = g.mul(columns, g.reshape(g.cast(mask, columns.element), (*columns.shape[:2], 1)))
    columns = g.reshape(columns, (batch, parts, size, prod(out), channels // parts))
    columns = g.reshape(g.transpose(columns, (0, 3, 1, 4, 2)), (batch, prod(out), groups, channels // groups * size))
    filters = g.reshape(g.widened(w), (groups, w.shape[0] // groups, channels // groups * size))
    y = g.matmul(g.transpose(columns, (0, 2, 1, 3)), _each(g, g.transpose(filters, (0, 2, 1)), batch))
    y = g.reshape(g.transpose(y, (0, 1, 3, 2)), (batch, w.shape[0], *out))
    return plus_bias(g, g.cast(y, x.element), bias)


def _each(g: GraphBuilder, x: Tensor, batch: int) -> Tensor:
    return g.broadcast(g.reshape(x, (1, *x.shape)), (batch, *x.shape))


def _check(node: Node, x: Tensor, w: Tensor, offset: Tensor, mask: Tensor | None, window: Window) -> None:
    groups, parts, size = node.int("group", 1), node.int("offset_group", 1), prod(window.kernel)
    channels, rank = x.shape[1], x.rank - 2
    if groups < 1 or parts < 1 or channels != w.shape[1] * groups or w.shape[0] % groups or channels % parts:
        message = f"{channels} channels, weights of shape {w.shape}, group {groups}, offset_group {parts}"
        raise node.error(message, "groups that divide the channels")
    out = [
        (x.shape[d + 2] + window.pads[d] + window.pads[d + rank] - window.dilations[d] * (k - 1) - 1)
        // window.strides[d]
        + 1
        for d, k in enumerate(window.kernel)
    ]
    for what, tensor, each in (("offset", offset, size * rank), ("mask", mask, size)):
        wanted = (x.shape[0], parts * each, *out)
        if tensor is not None and tensor.shape != wanted:
            raise node.error(f"{what} of shape {tensor.shape}", str(wanted))


def _coordinates(g: GraphBuilder, offset: Tensor, window: Window, d: int, parts: int) -> Tensor:
    """`[N * offset_group, kernel * out]` along a dimension of the picture."""
    out, rank, size = offset.shape[2:], len(window.kernel), prod(window.kernel)
    inner = np.indices(window.kernel)[d].reshape(size, 1) * window.dilations[d]
    outer = np.indices(out)[d].reshape(1, -1) * window.strides[d]
    places = (inner + outer - window.pads[d]).astype(np.float64).reshape(1, -1)
    moved = g.reshape(g.widened(offset), (offset.shape[0] * parts, size, rank, prod(out)))
    moved = g.reshape(g.narrow(moved, 2, d, 1), (offset.shape[0] * parts, size * prod(out)))
    return g.add(moved, g.constant(places.astype(moved.dtype)))
