"""Elements moved by as many places as a call says: along dimensions whose extents change, or from such positions."""

from __future__ import annotations

from xdsl.utils.exceptions import VerifyException

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbolic


def taken(g: GraphBuilder, x: Tensor, axis: int, start: Symbolic, count: Symbolic, step: int = 1) -> Tensor:
    """`count` elements along a dimension from `start`, in steps; all of them lie inside in each call.

    VerifyException for a merged dimension, where positions of the largest shape are none of a call.
    """
    if not isinstance(start, Extent) and step == 1:
        return g.narrow(x, axis, start, count)
    _check_whole(x, axis)
    positions = g.iota(count, step)
    positions = g.add(positions, g.numbers(start)) if isinstance(start, Extent) or start else positions
    return g.gather(x, positions, axis, laid_out=True)


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
        raise VerifyException(f"{a.type} and {b.type} are not concatenated")
    for x in (a, b):
        _check_whole(x, axis)
    total = extent + b.shape[axis]
    positions, count = g.iota(total), g.numbers(extent)
    first = g.gather(a, positions, axis, laid_out=True)
    second = g.gather(b, g.sub(positions, count), axis, laid_out=True)
    inside = g.reshape(g.binary("lt", positions, count), (total, *[1] * (a.rank - axis - 1)))
    return g.where(inside, first, second)


def _check_whole(x: Tensor, axis: int) -> None:
    extent = x.shape[axis]
    if isinstance(extent, Extent) and extent.factors:
        raise VerifyException(f"positions in the merged dimension {extent}")


__all__ = ["concatenated", "taken"]
