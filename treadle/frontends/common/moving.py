"""Elements moved by as many places as a call says: along dimensions whose extents change, or from such positions."""

from __future__ import annotations

from treadle.dialects.graph.definition import Misfit, require
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import MERGED, Extent, Symbolic, bound_of

MOST_POSITIONS = 1 << 24
"""Elements along a dimension that are read at computed positions, whose numbers are a constant."""


def taken(g: GraphBuilder, x: Tensor, axis: int, start: Symbolic, count: Symbolic, step: int = 1) -> Tensor:
    """`count` elements along a dimension from `start`, in steps; all of them lie inside in each call.

    Misfit for a merged dimension, where positions of the largest shape are none of a call.
    """
    if not isinstance(start, Extent) and step == 1:
        return g.narrow(x, axis, start, count)
    check_whole(x, axis)
    positions = g.iota(count, step)
    positions = g.add(positions, g.numbers(start)) if isinstance(start, Extent) or start else positions
    return g.gather(x, positions, axis, laid_out=True)


def at_positions(
    g: GraphBuilder, x: Tensor, axis: int, start: Symbolic | Tensor, count: Symbolic, mode: str, value: Tensor
) -> Tensor:
    """`count` elements along a dimension from position `start`, of which some may lie outside in a call.

    There the result has, by `mode`, a value (constant) or the element at a position inside: the nearest (edge), the one
    mirrored at the first and at the last (reflect), or the one a whole number of extents away (wrap). All modes but
    constant need an element in every call, and reflect positions less than an extent outside.

    start: a number, or a scalar of i64

    Misfit for a merged dimension, and for too many elements.
    """
    check_whole(x, axis)
    most = bound_of(count)
    require(most <= MOST_POSITIONS, f"{most} elements at computed positions", f"at most {MOST_POSITIONS}")
    first = start if isinstance(start, Tensor) else g.numbers(start)
    positions, extent = g.add(g.iota(count), first), g.numbers(x.shape[axis])
    if mode != "constant":
        return g.gather(x, _inside(g, positions, extent, mode), axis, laid_out=True)
    inside = g.binary("and", g.binary("ge", positions, 0), g.binary("lt", positions, extent))
    along = g.reshape(inside, (count, *[1] * (x.rank - axis - 1)))
    return g.where(along, g.gather(x, positions, axis, laid_out=True), value)


def _inside(g: GraphBuilder, positions: Tensor, extent: Tensor, mode: str) -> Tensor:
    """The positions that are read for some outside of an extent."""
    if mode == "wrap":
        return g.binary("mod", g.add(g.binary("mod", positions, extent), extent), extent)
    last = g.sub(extent, 1)
    if mode == "edge":
        return g.binary("max", g.binary("min", positions, last), 0)
    return g.sub(last, g.unary("abs", g.sub(last, g.unary("abs", positions))))


def concatenated(g: GraphBuilder, inputs: list[Tensor], axis: int) -> Tensor:
    """Tensors one after another; what is behind one whose extent changes begins at another position in each call."""
    joined = inputs[0]
    for x in inputs[1:]:
        joined = _behind(g, joined, x, axis) if isinstance(joined.shape[axis], Extent) else g.concat([joined, x], axis)
    return joined


def _behind(g: GraphBuilder, a: Tensor, b: Tensor, axis: int) -> Tensor:
    """Each element is that of the first tensor, or, beyond its extent, the second one's, as many places before."""
    extent = a.shape[axis]
    if a.element != b.element or a.rank != b.rank:
        raise Misfit(f"{a.type} and {b.type} are not concatenated", "one element type and one rank")
    for x in (a, b):
        check_whole(x, axis)
    total = extent + b.shape[axis]
    positions, count = g.iota(total), g.numbers(extent)
    first = g.gather(a, positions, axis, laid_out=True)
    second = g.gather(b, g.sub(positions, count), axis, laid_out=True)
    inside = g.reshape(g.binary("lt", positions, count), (total, *[1] * (a.rank - axis - 1)))
    return g.where(inside, first, second)


def check_whole(x: Tensor, axis: int) -> None:
    """Misfit for a merged dimension, where positions of the largest shape are none of a call."""
    extent = x.shape[axis]
    if isinstance(extent, Extent) and extent.factors:
        raise Misfit(f"positions in the merged dimension {extent}", MERGED)


__all__ = ["MOST_POSITIONS", "at_positions", "check_whole", "concatenated", "taken"]
