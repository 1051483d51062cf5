"""Contractions: MatMul, Gemm, Conv, ConvTranspose, Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import f64

from treadle.dialects.graph import ConvOp, ConvTransposeOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.products import matmul, plus_bias
from treadle.frontends.onnx.converters.window import Window, read_window
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
    window = read_window(node, x.shape, _kernel(node, x, w))
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
    pads, extra = _transposed_pads(node, x, window, extra)
    groups = node.int("group", 1)
    y = g.emit(lambda v: ConvTransposeOp(v[0], v[1], window.strides, pads, window.dilations, groups, extra), x, w)
    return plus_bias(g, y, bias)


def _transposed_pads(node: Node, x: Tensor, window: Window, extra: Sequence[int]) -> tuple[list[int], list[int]]:
    """Pads and output padding that give the extents that the node asks for."""
    rank = x.rank - 2
    wanted = node.ints("output_shape")
    if wanted is None and window.auto_pad.startswith("SAME"):
        wanted = [e * s for e, s in zip(x.shape[2:], window.strides, strict=True)]
    if wanted is None:
        return list(window.pads), list(extra)
    wanted = wanted[-rank:]
    if len(wanted) != rank:
        raise node.error(f"output_shape {wanted} of {rank} spatial dimensions", f"{rank} extents")
    before: list[int] = []
    after: list[int] = []
    grown: list[int] = []
    for d in range(rank):
        reach = window.dilations[d] * (window.kernel[d] - 1) + 1
        full = (x.shape[d + 2] - 1) * window.strides[d] + extra[d] + reach
        total = max(full - wanted[d], 0)
        half = total // 2 if window.auto_pad == "SAME_UPPER" else total - total // 2
        before.append(half)
        after.append(total - half)
        grown.append(extra[d] + max(wanted[d] - full, 0))
    return before + after, grown


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
