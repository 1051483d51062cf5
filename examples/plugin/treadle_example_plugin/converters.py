"""A converter: an operator of a domain of one's own."""

from treadle.plugins import GraphBuilder, Node, Tensor, converts
from treadle_example_plugin.dialect import SquaredReluOp


@converts("SquaredRelu", domain="example.plugin")
def squared_relu(node: Node, g: GraphBuilder) -> Tensor:
    """An operator of the dialect."""
    return g.emit(lambda operands: SquaredReluOp(operands), node.input())
