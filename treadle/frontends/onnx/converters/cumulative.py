"""CumSum and CumProd."""

from __future__ import annotations

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.cumulative import cumulative
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


@converts("CumSum", since=11)
def cumulative_sum(node: Node, g: GraphBuilder) -> Tensor:
    """Sums of all elements so far."""
    return _cumulative(node, g, "add")


@converts("CumProd", since=26)
def cumulative_product(node: Node, g: GraphBuilder) -> Tensor:
    """Products of all elements so far."""
    return _cumulative(node, g, "mul")


def _cumulative(node: Node, g: GraphBuilder, kind: str) -> Tensor:
    x = node.input()
    axis = node.axis(node.known_int(1, "the axis"), x.rank)
    return cumulative(g, x, axis, kind, reverse=node.flag("reverse"), exclusive=node.flag("exclusive"))
