"""Pooling, over windows and global."""

from __future__ import annotations

from math import prod

import numpy as np

from treadle.dialects.graph import ArgReductionOp
from treadle.dialects.graph.reduction import identity
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import is_symbolic
from treadle.frontends.common.window import pooled, window_sums
from treadle.frontends.onnx.converters.reshape import read_window
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node


def _pool(node: Node, g: GraphBuilder, kind: str, count_pad: bool) -> Tensor:
    x = node.input()
    kernel = node.ints("kernel_shape")
    if kernel is None:
        raise node.error("attribute 'kernel_shape' is missing", "the window's extents")
    window = read_window(node, x.shape, kernel)
    return pooled(g, kind, x, window, node.flag("ceil_mode") and not window.is_same, count_pad)


@converts("MaxPool")
def max_pool(node: Node, g: GraphBuilder) -> list[Tensor]:
    """The largest elements, and their positions in the whole tensor if somebody reads them: in each window the first
    one, in the order of rows; `storage_order` of 1 counts positions within a picture by columns."""
    by_columns, largest = node.flag("storage_order"), _pool(node, g, "max", False)
    if len(node.used) < 2 or not node.used[1]:
        return [largest]
    return [largest, _positions(node, g, largest, by_columns)]


def _positions(node: Node, g: GraphBuilder, largest: Tensor, by_columns: bool) -> Tensor:
    x, kernel = node.input(), node.ints("kernel_shape") or []
    if is_symbolic(x.shape):
        raise node.error(f"positions in an input of shape {x.shape}", "static extents")
    window, rank = read_window(node, x.shape, kernel), x.rank - 2
    dims, out, size = x.shape[2:], largest.shape[2:], prod(kernel)
    node.reserve((prod(out), size, rank + 4), np.dtype(np.int64))
    outer = np.indices(out).reshape(rank, -1, 1)
    inner = np.indices(tuple(kernel)).reshape(rank, 1, -1)
    strides, dilations, pads = (
        np.array(v).reshape(rank, 1, 1) for v in (window.strides, window.dilations, window.pads[:rank])
    )
    places = outer * strides + inner * dilations - pads
    ends = np.array(dims).reshape(rank, 1, 1)
    inside = np.asarray(((places >= 0) & (places < ends)).all(0))
    places = list(np.clip(places, 0, ends - 1))
    linear = np.asarray(np.ravel_multi_index(places, dims))
    planes = prod(x.shape[:2])
    windows = g.gather(g.reshape(x, (planes, prod(dims))), g.constant(linear), 1)
    lowest = g.scalar(identity("max", x.element), x)
    windows = g.where(g.constant(inside), windows, lowest)
    chosen = g.emit(lambda v: ArgReductionOp("max", v[0], 2, False), windows)
    counted = np.asarray(np.ravel_multi_index(places[::-1], dims[::-1])) if by_columns else linear
    at = g.add(chosen, g.constant(np.arange(prod(out)) * size))
    at = g.gather(g.constant(counted.reshape(-1)), at, 0)
    whole = g.add(at, g.constant(np.arange(planes)[:, None] * prod(dims)))
    return g.reshape(whole, (*x.shape[:2], *out))


@converts("AveragePool")
def average_pool(node: Node, g: GraphBuilder) -> Tensor:
    """Padding counts as zeros with `count_include_pad`, else not at all."""
    return _pool(node, g, "avg", node.flag("count_include_pad"))


@converts("LpPool", since=2)
def lp_pool(node: Node, g: GraphBuilder) -> Tensor:
    """The root of the sum of powers: a mean over windows, padding counted as zeros, times their size."""
    x, kernel, p = node.input(), node.ints("kernel_shape"), node.int("p", 2)
    if kernel is None or p < 1:
        raise node.error(f"kernel_shape {kernel}, p {p}", "the window's extents, and p from 1 upwards")
    window = read_window(node, x.shape, kernel)
    powers = _power(g, g.widened(x), p)
    total = window_sums(g, powers, window, node.flag("ceil_mode") and not window.is_same)
    return g.cast(_root(g, total, p), x.element)


@converts("GlobalLpPool", since=2)
def global_lp_pool(node: Node, g: GraphBuilder) -> Tensor:
    """The root of the sum of powers over the spatial dimensions."""
    x, p = node.input(), node.int("p", 2)
    if p < 1:
        raise node.error(f"p is {p}", "p from 1 upwards")
    total = g.reduce("add", _power(g, g.widened(x), p), _spatial(node), keep=True)
    return g.cast(_root(g, total, p), x.element)


def _power(g: GraphBuilder, x: Tensor, p: int) -> Tensor:
    if p == 1:
        return g.unary("abs", x)
    return g.mul(x, x) if p == 2 else g.binary("pow", g.unary("abs", x), p)


def _root(g: GraphBuilder, x: Tensor, p: int) -> Tensor:
    if p == 1:
        return x
    return g.unary("sqrt", x) if p == 2 else g.binary("pow", x, 1 / p)


def _spatial(node: Node) -> range:
    x = node.input()
    if x.rank < 3:
        raise node.error(f"an input of rank {x.rank}", "rank 3 and more")
    return range(2, x.rank)


@converts("GlobalAveragePool")
def global_average_pool(node: Node, g: GraphBuilder) -> Tensor:
    """The mean over the spatial dimensions."""
    return g.reduce("mean", node.input(), _spatial(node), keep=True)


@converts("GlobalMaxPool")
def global_max_pool(node: Node, g: GraphBuilder) -> Tensor:
    """The maximum over the spatial dimensions."""
    return g.reduce("max", node.input(), _spatial(node), keep=True)
