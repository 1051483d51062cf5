"""Sums and products of all elements so far."""

from __future__ import annotations

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import bound_of


def cumulative(
    g: GraphBuilder, x: Tensor, axis: int, kind: str, *, reverse: bool = False, exclusive: bool = False
) -> Tensor:
    """Sums (`add`) or products (`mul`) along an axis, in `log2 n` steps, each of which doubles how many elements a
    result covers: each element is combined with that as many places before it. Source: Hillis and Steele, "Data
    parallel algorithms", CACM 29(12), 1986."""
    neutral = {"add": 0, "mul": 1}[kind]
    y = g.widened(x)
    if exclusive:
        y = _shifted(g, y, axis, 1, reverse, neutral)
    reach = 1
    while reach < bound_of(x.shape[axis]):
        y = g.binary(kind, y, _shifted(g, y, axis, reach, reverse, neutral))
        reach *= 2
    return g.cast(y, x.element)


def _shifted(g: GraphBuilder, x: Tensor, axis: int, places: int, back: bool, fill: float) -> Tensor:
    """The element so many places before, or with `back` after, each."""
    pads = [0] * (2 * x.rank)
    pads[axis + x.rank if back else axis] = places
    return g.narrow(g.pad(x, pads, fill), axis, places if back else 0, x.shape[axis])


__all__ = ["cumulative"]
