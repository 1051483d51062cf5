"""Pad: attributes until opset 10, inputs since."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import PadOp
from treadle.frontends.onnx.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

MODES = ("constant", "reflect", "edge")
LATER_MODES = (*MODES, "wrap")
"""Those since opset 19."""
MOST_WRAPPED = 1 << 24
"""Elements that are wrapped around an end of a dimension: their positions are a constant."""


@converts("Pad", since=2)
def pad_attributes(node: Node, g: GraphBuilder) -> Tensor:
    """Pads and value as attributes."""
    x = node.input()
    pads = node.ints_of_length("pads", 2 * x.rank, 0)
    return _padded(g, x, node.string("mode", "constant", MODES), pads, g.scalar(node.float("value", 0.0), x))


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
    return _padded(g, x, node.string("mode", "constant", modes), pads, value)


def _padded(g: GraphBuilder, x: Tensor, mode: str, pads: Sequence[int], value: Tensor) -> Tensor:
    """Negative pads cut elements off before the others add some."""
    before, after = pads[: x.rank], pads[x.rank :]
    starts = [max(-p, 0) for p in before]
    sizes = [e - s - max(-q, 0) for e, s, q in zip(x.shape, starts, after, strict=True)]
    x = g.slice(x, starts, sizes, [1] * x.rank)
    added = [max(p, 0) for p in pads]
    if mode == "wrap":
        return _wrapped(g, x, added)
    return g.emit(lambda v: PadOp(mode, v[0], v[1], added), x, value) if any(added) else x


def _wrapped(g: GraphBuilder, x: Tensor, pads: Sequence[int]) -> Tensor:
    """Copies of the tensor around it; VerifyException where there is nothing to copy, or too much of it."""
    for axis, extent in enumerate(x.shape):
        before, after = pads[axis], pads[axis + x.rank]
        if not before and not after:
            continue
        if not extent or max(before, after) > MOST_WRAPPED:
            raise VerifyException(f"pads {before}, {after} of an extent of {extent}: up to {MOST_WRAPPED} of some")
        x = g.gather(x, g.constant(np.arange(-before, extent + after) % extent), axis)
    return x
