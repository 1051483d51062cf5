"""A converter: an operator of a domain of one's own."""

from treadle.plugins import GraphBuilder, Node, Tensor, converts


@converts("SquaredRelu", domain="example.plugin")
def squared_relu(node: Node, g: GraphBuilder) -> Tensor:
    """`max(x, 0) ** 2`."""
    y = g.unary("relu", node.input())
    return g.mul(y, y)
