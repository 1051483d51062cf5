"""Contractions: MatMul, Gemm, Conv, ConvTranspose, Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import f64

from treadle.dialects.graph import ConvOp, ConvTransposeOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbolic
from treadle.frontends.common.moving import at_positions
from treadle.frontends.common.products import matmul, plus_bias
from treadle.frontends.common.window import Window, half
from treadle.frontends.onnx.converters.window import read_window
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


@converts("MatMul")
def matmul_node(node: Node, g: GraphBuilder) -> Tensor:
    """NumPy's matmul."""
    a, b = node.input(0), node.input(1)
    if a.rank == 0 or b.rank == 0:
        raise node.error("an operand has rank 0", "rank 1 and more")
    return matmul(g, a, b)


@converts("Gemm", since=7)
def gemm(node: Node, g: GraphBuilder) -> Tensor:
    """`alpha * A' B' + beta * C`."""
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if a.rank != 2 or b.rank != 2:
        raise node.error(f"operands of rank {a.rank} and {b.rank}", "rank 2")
    a = g.transpose(a, (1, 0)) if node.flag("transA") else a
    b = g.transpose(b, (1, 0)) if node.flag("transB") else b
    alpha, beta = node.float("alpha", 1.0), node.float("beta", 1.0)
    product = _scaled(g, g.matmul(a, b), alpha)
    return product if c is None or beta == 0 else g.add(product, _scaled(g, c, beta))


def _scaled(g: GraphBuilder, x: Tensor, factor: float) -> Tensor:
    if factor == 1:
        return x
    if x.is_float or factor.is_integer():
        return g.mul(x, factor)
    # An integer times a fraction is rounded towards zero, as a cast does it.
    wide = g.cast(x, f64)
    return g.cast(g.mul(wide, factor), x.element)


@converts("Conv")
def conv(node: Node, g: GraphBuilder) -> Tensor:
    """The bias is an addition of its own."""
    return plus_bias(g, convolution(node, g, node.input(0), node.input(1)), node.optional(2))


def convolution(node: Node, g: GraphBuilder, x: Tensor, w: Tensor) -> Tensor:
    """A convolution by the attributes of `Conv`, of operands that may be others than the node's."""
    x, window = read_window(node, x.shape, _kernel(node, x, w)).fitted(g, x, 0)
    groups = node.int("group", 1)
    return g.emit(lambda v: ConvOp(v[0], v[1], window.strides, window.pads, window.dilations, groups), x, w)


def _kernel(node: Node, x: Tensor, w: Tensor) -> Sequence[int]:
    if x.rank < 3 or w.rank != x.rank:
        raise node.error(f"an input of rank {x.rank} and weights of rank {w.rank}", "equal ranks from 3 upwards")
    kernel = node.ints("kernel_shape")
    if kernel is not None and tuple(kernel) != w.shape[2:]:
        raise node.error(f"kernel_shape {kernel} contradicts the weights' {list(w.shape[2:])}", str(list(w.shape[2:])))
    return w.shape[2:]


@converts("ConvTranspose")
def conv_transpose(node: Node, g: GraphBuilder) -> Tensor:
    """The output's extent follows from the pads, or the pads from `output_shape` or `auto_pad`."""
    x, w, bias = node.input(0), node.input(1), node.optional(2)
    kernel = _kernel(node, x, w)
    window = read_window(node, x.shape, kernel, transposed=True)
    extra = node.ints_of_length("output_padding", x.rank - 2, 0)
    groups, pads, cut = node.int("group", 1), list(window.pads), dict[int, tuple[Symbolic, Symbolic]]()
    if (wanted := _wanted_extents(node, x, window)) is not None:
        pads, extra, cut = _transposed_pads(x, window, extra, wanted)
    y = g.emit(lambda v: ConvTransposeOp(v[0], v[1], window.strides, pads, window.dilations, groups, extra), x, w)
    for d, (total, extent) in cut.items():
        y = at_positions(g, y, d + 2, half(g, total, not window.is_upper), extent, "constant", g.scalar(0, y))
    return plus_bias(g, y, bias)


def _wanted_extents(node: Node, x: Tensor, window: Window) -> list[Symbolic] | None:
    """The spatial extents that the node asks for; None if they follow from the pads."""
    wanted = node.ints("output_shape")
    if wanted is None:
        same = [extent * stride for extent, stride in zip(x.shape[2:], window.strides, strict=True)]
        return same if window.is_same else None
    if len(wanted) < window.rank:
        raise node.error(f"output_shape {wanted} of {window.rank} spatial dimensions", f"{window.rank} extents")
    return list(wanted[-window.rank :])


def _transposed_pads(
    x: Tensor, window: Window, extra: Sequence[int], wanted: Sequence[Symbolic]
) -> tuple[list[int], list[int], dict[int, tuple[Symbolic, Symbolic]]]:
    """Pads and output padding that give the extents that are asked for; and what is cut to them in each call, by
    spatial dimensions: how many elements there are more, and the extent."""
    rank = window.rank
    pads, grown = [0] * (2 * rank), list(extra)
    cut: dict[int, tuple[Symbolic, Symbolic]] = {}
    for d, extent in enumerate(wanted):
        over = (x.shape[d + 2] - 1) * window.strides[d] + extra[d] + window.reach(d) - extent
        if isinstance(over, Extent):
            cut[d] = over, extent
            continue
        total = max(over, 0)
        pads[d] = total // 2 if window.is_upper else total - total // 2
        pads[d + rank] = total - pads[d]
        grown[d] += total - over
    return pads, grown, cut


@converts("Col2Im", since=18)
def col2im(node: Node, g: GraphBuilder) -> Tensor:
    """The sum of blocks where they overlap: a transposed convolution of each channel with unit blocks."""
    x, image, block = node.input(0), node.known_ints(1, "the image's shape"), node.known_ints(2, "the block's shape")
    rank, size = len(block), prod(block)
    if x.rank != 3 or len(image) != rank or size < 1 or x.shape[1] % size:
        shapes = f"an input of shape {x.shape}, an image of {image}, blocks of {block}"
        raise node.error(shapes, "[N, C * block, L], and as many extents of the image as of the block")
    window = read_window(node, (1, 1, *image), block)
    grid = [
        (e + window.pads[d] + window.pads[d + rank] - window.dilations[d] * (k - 1) - 1) // window.strides[d] + 1
        for d, (e, k) in enumerate(zip(image, block, strict=True))
    ]
    if prod(grid) != x.shape[2]:
        raise node.error(f"{x.shape[2]} blocks", f"{prod(grid)}, as the image has places for")
    channels = x.shape[1] // size
    node.reserve((size, size), x.dtype)
    units = g.constant(np.eye(size, dtype=x.dtype).reshape(size, 1, *block))
    columns = g.reshape(x, (x.shape[0] * channels, size, *grid))
    extra = [
        e
        + window.pads[d]
        + window.pads[d + rank]
        - (grid[d] - 1) * window.strides[d]
        - window.dilations[d] * (k - 1)
        - 1
        for d, (e, k) in enumerate(zip(image, block, strict=True))
    ]
    lists = (window.strides, window.pads, window.dilations)
    y = g.emit(lambda v: ConvTransposeOp(v[0], v[1], *lists, 1, extra), columns, units)
    return g.reshape(y, (x.shape[0], channels, *image))
