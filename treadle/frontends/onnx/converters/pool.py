"""Pooling, over windows and global."""

from __future__ import annotations

from treadle.dialects.graph import PoolOp
from treadle.frontends.onnx.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.converters.window import read_window
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


def _pool(node: Node, g: GraphBuilder, kind: str, count_pad: bool) -> Tensor:
    x = node.input()
    kernel = node.ints("kernel_shape")
    if kernel is None:
        raise node.error("attribute 'kernel_shape' is missing", "the window's extents")
    window = read_window(node, x.shape, kernel)
    # SAME_* fixes the number of positions, so that there is nothing to round.
    ceil = node.flag("ceil_mode") and window.auto_pad in ("NOTSET", "VALID")
    lists = (window.kernel, window.strides, window.pads, window.dilations)
    return g.emit(lambda v: PoolOp(kind, v[0], *lists, ceil, count_pad), x)


@converts("MaxPool")
def max_pool(node: Node, g: GraphBuilder) -> Tensor:
    """`storage_order` concerns only the indices, which are not supported."""
    node.ignore("storage_order")
    return _pool(node, g, "max", False)


@converts("AveragePool")
def average_pool(node: Node, g: GraphBuilder) -> Tensor:
    """Padding counts as zeros with `count_include_pad`, else not at all."""
    return _pool(node, g, "avg", node.flag("count_include_pad"))


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
