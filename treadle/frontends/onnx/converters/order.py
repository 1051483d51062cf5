"""TopK: elements by their rank."""

from __future__ import annotations

from xdsl.dialects.builtin import i1

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.order import ordered
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


@converts("TopK", since=10)
def top_k(node: Node, g: GraphBuilder) -> list[Tensor]:
    """The k first elements along an axis and their positions, in order also without `sorted`."""
    node.ignore("sorted")
    x, largest = node.input(0), node.flag("largest", True)
    count = node.known_int(1, "k")
    axis = node.axis(node.int("axis", -1), x.rank)
    extent = x.shape[axis]
    if not 0 <= count <= extent:
        raise node.error(f"k is {count}", f"0 to {extent}")
    if x.element == i1:
        raise node.error("an input of bools", "numbers")
    return list(ordered(node, g, x, axis, count, largest))
