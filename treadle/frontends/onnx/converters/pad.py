"""Pad: attributes until opset 10, inputs since."""

from __future__ import annotations

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.padding import padded
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

MODES = ("constant", "reflect", "edge")
LATER_MODES = (*MODES, "wrap")
"""Those since opset 19."""


@converts("Pad", since=2)
def pad_attributes(node: Node, g: GraphBuilder) -> Tensor:
    """Pads and value as attributes."""
    x = node.input()
    pads = node.ints_of_length("pads", 2 * x.rank, 0)
    return padded(g, x, node.string("mode", "constant", MODES), pads, g.scalar(node.float("value", 0.0), x))


@converts("Pad", since=11)
def pad_inputs(node: Node, g: GraphBuilder) -> Tensor:
    """Pads, value and (since opset 18) the axes that they belong to as inputs."""
    x = node.input()
    axes = node.axes(node.known_ints(3, "axes"), x.rank) if node.optional(3) is not None else list(range(x.rank))
    given = node.known_ints(1, "pads")
    if len(given) != 2 * len(axes):
        raise node.error(f"pads {given} for {len(axes)} axes", f"{2 * len(axes)} numbers")
    pads = [0] * (2 * x.rank)
    for n, axis in enumerate(axes):
        pads[axis], pads[axis + x.rank] = given[n], given[n + len(axes)]
    value = node.optional(2)
    value = g.scalar(0, x) if value is None else g.reshape(value, ())
    modes = LATER_MODES if node.opset >= 19 else MODES
    return padded(g, x, node.string("mode", "constant", modes), pads, value)
