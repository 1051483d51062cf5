"""Softmax, its logarithm, and Hardmax."""

from __future__ import annotations

from math import prod

from treadle.dialects.graph import ArgReductionOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.softmax import softmax_along
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


@converts("Softmax", "LogSoftmax")
def softmax_flattened(node: Node, g: GraphBuilder) -> Tensor:
    """Before opset 13 the dimensions from `axis` on are one."""
    x = node.input()
    axis = node.int("axis", 1)
    axis = axis if axis == x.rank else node.axis(axis, x.rank)
    log = node.op_type == "LogSoftmax"
    if axis == x.rank - 1:
        return softmax_along(g, x, axis, log)
    rows = g.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    return g.reshape(softmax_along(g, rows, 1, log), x.shape)


@converts("Softmax", "LogSoftmax", since=13)
def softmax(node: Node, g: GraphBuilder) -> Tensor:
    """Along one dimension."""
    x = node.input()
    return softmax_along(g, x, node.axis(node.int("axis", -1), x.rank), node.op_type == "LogSoftmax")


def _hardmax(g: GraphBuilder, x: Tensor, dim: int) -> Tensor:
    first = g.emit(lambda v: ArgReductionOp("max", v[0], dim, True, False), x)
    positions = g.reshape(g.iota(x.shape[dim]), (x.shape[dim], *[1] * (x.rank - dim - 1)))
    return g.where(g.binary("eq", first, positions), g.scalar(1, x), g.scalar(0, x))


@converts("Hardmax")
def hardmax_flattened(node: Node, g: GraphBuilder) -> Tensor:
    """Before opset 13 the dimensions from `axis` on are one."""
    x = node.input()
    axis = node.int("axis", 1)
    axis = axis if axis == x.rank else node.axis(axis, x.rank)
    rows = g.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    return g.reshape(_hardmax(g, rows, 1), x.shape)


@converts("Hardmax", since=13)
def hardmax(node: Node, g: GraphBuilder) -> Tensor:
    """1 for the first largest element along a dimension, else 0."""
    x = node.input()
    return _hardmax(g, x, node.axis(node.int("axis", -1), x.rank))
