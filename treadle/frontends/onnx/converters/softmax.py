"""Softmax and its logarithm."""

from __future__ import annotations

from math import prod

from treadle.dialects.graph import SoftmaxOp
from treadle.frontends.onnx.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


def _softmax(g: GraphBuilder, x: Tensor, dim: int, log: bool) -> Tensor:
    if not log:
        return g.emit(lambda v: SoftmaxOp(v[0], dim), x)
    wide = g.widened(x)
    shifted = g.sub(wide, g.reduce("max", wide, [dim], keep=True))
    total = g.reduce("add", g.unary("exp", shifted), [dim], keep=True)
    return g.cast(g.sub(shifted, g.unary("log", total)), x.element)


@converts("Softmax", "LogSoftmax")
def softmax_flattened(node: Node, g: GraphBuilder) -> Tensor:
    """Before opset 13 the dimensions from `axis` on are one."""
    x = node.input()
    axis = node.int("axis", 1)
    axis = axis if axis == x.rank else node.axis(axis, x.rank)
    log = node.op_type == "LogSoftmax"
    if axis == x.rank - 1:
        return _softmax(g, x, axis, log)
    rows = g.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    return g.reshape(_softmax(g, rows, 1, log), x.shape)


@converts("Softmax", "LogSoftmax", since=13)
def softmax(node: Node, g: GraphBuilder) -> Tensor:
    """Along one dimension."""
    x = node.input()
    return _softmax(g, x, node.axis(node.int("axis", -1), x.rank), node.op_type == "LogSoftmax")
