"""CumSum and CumProd."""

from __future__ import annotations

from treadle.frontends.onnx.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


@converts("CumSum", since=11)
def cumulative_sum(node: Node, g: GraphBuilder) -> Tensor:
    """Sums of all elements so far."""
    return _cumulative(node, g, "add", 0)


@converts("CumProd", since=26)
def cumulative_product(node: Node, g: GraphBuilder) -> Tensor:
    """Products of all elements so far."""
    return _cumulative(node, g, "mul", 1)


def _cumulative(node: Node, g: GraphBuilder, kind: str, neutral: float) -> Tensor:
    """In `log2 n` steps, each of which doubles how many elements a result covers: each element is combined with that
    as many places before it. Source: Hillis and Steele, "Data parallel algorithms", CACM 29(12), 1986."""
    x = node.input()
    axis = node.axis(node.known_int(1, "the axis"), x.rank)
    extent, reverse = x.shape[axis], node.flag("reverse")
    y = g.widened(x)
    if node.flag("exclusive"):
        y = _shifted(g, y, axis, 1, reverse, neutral)
    reach = 1
    while reach < int(extent):
        y = g.binary(kind, y, _shifted(g, y, axis, reach, reverse, neutral))
        reach *= 2
    return g.cast(y, x.element)


def _shifted(g: GraphBuilder, x: Tensor, axis: int, places: int, back: bool, fill: float) -> Tensor:
    """The element so many places before, or with `back` after, each."""
    pads = [0] * (2 * x.rank)
    pads[axis + x.rank if back else axis] = places
    return g.narrow(g.pad(x, pads, fill), axis, places if back else 0, x.shape[axis])
