"""Padding, of which negative pads cut elements off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.dialects.graph import PadOp
from treadle.dialects.graph.definition import Misfit, require
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbolic, is_symbolic, least_of
from treadle.frontends.common.moving import MOST_POSITIONS, at_positions


def padded(g: GraphBuilder, x: Tensor, mode: str, pads: Sequence[Symbolic], value: Tensor) -> Tensor:
    """Negative pads cut elements off before the others add some; those of a call may do either, with a constant."""
    x = _cut(g, x, pads)
    added = [p if isinstance(p, Extent) else max(p, 0) for p in pads]
    for axis in range(x.rank):
        before, after = added[axis], added[axis + x.rank]
        _check_amounts(x.shape[axis], mode, before, after)
        if _depends_on_call(x, axis, mode, (before, after), value):
            added[axis] = added[axis + x.rank] = 0
            count = x.shape[axis] + before + after
            x = at_positions(g, x, axis, -before, count, mode, value)
    if mode == "wrap":
        return _wrapped(g, x, added)
    return g.emit(lambda v: PadOp(mode, v[0], v[1], added), x, value) if any(added) else x


def _cut(g: GraphBuilder, x: Tensor, pads: Sequence[Symbolic]) -> Tensor:
    """Without the elements that negative numbers cut off."""
    cut = [0 if isinstance(p, Extent) else max(-p, 0) for p in pads]
    before, after = cut[: x.rank], cut[x.rank :]
    sizes = [e - s - q for e, s, q in zip(x.shape, before, after, strict=True)]
    for extent, size in zip(x.shape, sizes, strict=True):
        require(
            not isinstance(extent, Extent) or least_of(size) >= 0,
            f"{extent - size} elements are cut off {extent}, of which some call has fewer",
            "a range of extents from there on",
        )
    return g.slice(x, before, sizes, [1] * x.rank)


def _depends_on_call(x: Tensor, axis: int, mode: str, around: tuple[Symbolic, Symbolic], value: Tensor) -> bool:
    """Whether what is padded lies, or is read, at other positions in each call than in that of the largest shape."""
    before, after = around
    if is_symbolic(around):
        return True
    if not isinstance(x.shape[axis], Extent):
        return False
    behind = after > 0 and (mode != "constant" or value.array is None)
    return behind or (mode == "wrap" and before > 0)


def _check_amounts(extent: Symbolic, mode: str, before: Symbolic, after: Symbolic) -> None:
    """Misfit for a result of fewer elements than none in some call, and for one that has too few to repeat."""
    amounts = [amount for amount in (before, after) if isinstance(amount, Extent) or amount]
    if not amounts or not is_symbolic((extent, before, after)):
        return
    what = f"padding of {before} before and {after} behind {extent} elements"
    least = least_of(extent + before + after)
    require(least >= 0, f"{what} leaves {least} in some call", "0 or more in every call of the range")
    if mode == "constant":
        return
    cuts = any(least_of(amount) < 0 for amount in amounts)
    require(not cuts, f"{what} by mode {mode} cuts some off in some call", "amounts from 0 upwards, or mode constant")
    fewest = min(least_of(extent - amount) for amount in amounts) if mode == "reflect" else least_of(extent)
    needed = "more elements than are mirrored" if mode == "reflect" else "at least one element"
    require(fewest >= 1, f"{what} by mode {mode} has too few to repeat in some call", f"{needed} in every call")


def _wrapped(g: GraphBuilder, x: Tensor, pads: Sequence[int]) -> Tensor:
    """Copies of the tensor around it; Misfit where there is nothing to copy, or too much of it."""
    for axis, extent in enumerate(x.shape):
        before, after = pads[axis], pads[axis + x.rank]
        if not before and not after:
            continue
        if not extent or max(before, after) > MOST_POSITIONS:
            raise Misfit(f"pads {before}, {after} of an extent of {extent}", f"up to {MOST_POSITIONS} of some")
        x = g.gather(x, g.constant(np.arange(-before, extent + after) % extent), axis)
    return x


__all__ = ["padded"]
