"""Sliding windows over extents that change: how a tensor is padded for them, by how much in each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from treadle.dialects.graph import PadOp, PoolOp
from treadle.dialects.graph.definition import Misfit, require
from treadle.dialects.graph.reduction import identity
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import (
    MERGED,
    Extent,
    Symbolic,
    bound_of,
    is_symbolic,
    least_of,
    maximum,
    minimum,
)

# Padding, of which negative pads cut elements off.


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


# Elements moved by as many places as a call says: along dimensions whose extents change, or from such positions.

MOST_POSITIONS = 1 << 24
"""Elements along a dimension that are read at computed positions, whose numbers are a constant."""


def symbolic_range(extent: Symbolic, start: Symbolic, end: Symbolic, step: int) -> tuple[Symbolic, Symbolic]:
    """Start and size of a slice of a symbolic dimension, or with symbolic bounds."""
    start, end = (bound + extent if bound < 0 else bound for bound in (start, end))
    if step < 0:
        start, end = minimum(maximum(start, 0), extent - 1), minimum(maximum(end, -1), extent - 1)
    else:
        start, end = (minimum(maximum(bound, 0), extent) for bound in (start, end))
    return start, maximum(-((start - end) // step if step > 0 else (end - start) // -step), 0)


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
    if a.ssa in g.states:
        return g.append(a, b, g.numbers(extent), axis)
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


# Pools over windows, along dimensions whose extents change, too.


def pooled(g: GraphBuilder, kind: str, x: Tensor, window: Window, ceil: bool, count_pad: bool) -> Tensor:
    """The largest elements (max) or means (avg) under a window; `ceil` rounds the number of positions up, and with
    `count_pad` padding counts as zeros.

    Along symbolic extents a number of positions that is rounded up is one of more padding, of which a mean counts none.
    """
    if not is_symbolic(x.shape[2:]):
        return _pool(g, kind, x, window, ceil, count_pad)
    padded = window.rounded_up() if ceil else window
    if kind == "max":
        fitted, padded = padded.fitted(g, x, identity("max", x.element))
        return _pool(g, kind, fitted, padded, False, False)
    mean = _mean(g, g.widened(x), padded)
    for d in range(window.rank):
        share = _counted(g, mean, x.shape[d + 2], window.along(d), padded.along(d), count_pad)
        if share is not None:
            mean = g.div(mean, g.reshape(share, (share.shape[2], *[1] * (window.rank - 1 - d))))
    return g.cast(mean, x.element)


def window_sums(g: GraphBuilder, x: Tensor, window: Window, ceil: bool) -> Tensor:
    """The sums under a window, with zeros as padding."""
    padded = window.rounded_up() if ceil else window
    return g.mul(_mean(g, x, padded), prod(window.kernel))


def _mean(g: GraphBuilder, x: Tensor, window: Window) -> Tensor:
    """Means under a window, whose padding counts as zeros."""
    x, window = window.fitted(g, x, 0)
    return _pool(g, "avg", x, window, False, True)


def _pool(g: GraphBuilder, kind: str, x: Tensor, window: Window, ceil: bool, count_pad: bool) -> Tensor:
    lists = (window.kernel, window.strides, window.pads, window.dilations)
    return g.emit(lambda v: PoolOp(kind, v[0], *lists, ceil, count_pad), x)


def _counted(
    g: GraphBuilder, mean: Tensor, extent: Symbolic, window: Window, padded: Window, count_pad: bool
) -> Tensor | None:
    """Which part of a window counts along a spatial dimension, at each position: the means of ones; None if all do.

    window: that of the dimension, with the padding that counts if `count_pad`
    padded: that of the mean, with padding that rounds up
    """
    if count_pad:
        before, after = window.pads[0], min(window.pads[1], padded.pads[1])
        extent, padded = extent + before + after, replace(padded, pads=(0, padded.pads[1] - after), covered={})
    if not any(padded.pads) and not padded.covered:
        return None
    return _mean(g, g.filled(1, mean.dtype, (1, 1, extent)), padded)


@dataclass(frozen=True)
class Window:
    """A sliding window over the spatial dimensions; `pads` lists the beginnings, then the ends.

    auto_pad: ONNX's rule for the pads; of an odd number of them SAME_UPPER has one more behind, others before
    covered:  for spatial dimensions whose padding depends on the call, which `pads` has not, the extent that the
        windows cover; what it has more than the tensor is padding
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    auto_pad: str = "NOTSET"
    covered: Mapping[int, Symbolic] = field(default_factory=dict[int, Symbolic])

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def is_same(self) -> bool:
        """Whether the number of positions is fixed, so that there is nothing to round."""
        return self.auto_pad.startswith("SAME")

    @property
    def is_upper(self) -> bool:
        return self.auto_pad == "SAME_UPPER"

    def reach(self, d: int) -> int:
        """The elements from the first to the last of a window, along a spatial dimension."""
        return self.dilations[d] * (self.kernel[d] - 1) + 1

    def along(self, d: int) -> Window:
        """The window of one spatial dimension."""
        pads = self.pads[d], self.pads[d + self.rank]
        covered = {0: self.covered[d]} if d in self.covered else {}
        return Window((self.kernel[d],), (self.strides[d],), pads, (self.dilations[d],), self.auto_pad, covered)

    def rounded_up(self) -> Window:
        """The window with as much padding behind as a number of positions that is rounded up needs.

        ceil((e + p) / s) positions of e elements with padding, of windows that reach r, are those of e + p + s - 1
        elements; the last one has to begin inside the input or the padding before it, however.
        """
        pads = list(self.pads)
        for d, stride in enumerate(self.strides):
            after = pads[d + self.rank]
            beyond = after + stride - self.reach(d)
            # The last window begins inside in every call, in some calls, or in none.
            rounded = after + stride - 1 if beyond <= 0 else self.reach(d) - 1 if beyond <= stride else after - 1
            pads[d + self.rank] = rounded
        return replace(self, pads=tuple(pads))

    def fitted(self, g: GraphBuilder, x: Tensor, value: float) -> tuple[Tensor, Window]:
        """A tensor with the padding that depends on the call, of a value, and the window without it."""
        for d, covered in self.covered.items():
            start = negated(g, half(g, covered - x.shape[d + 2], not self.is_upper))
            x = at_positions(g, x, d + 2, start, covered, "constant", g.scalar(value, x))
        return x, replace(self, covered={})


def covered_extent(extent: Symbolic, kernel: int, stride: int, dilation: int) -> Symbolic:
    """What `ceil(extent / stride)` windows cover."""
    return ((extent + stride - 1) // stride - 1) * stride + dilation * (kernel - 1) + 1


def half(g: GraphBuilder, number: Symbolic, up: bool) -> Symbolic | Tensor:
    """Half of a number, rounded up or down; 0 in calls in which it is negative."""
    number = number + 1 if up else number
    if not isinstance(number, Extent) or least_of(number) >= 0:
        return max(number, 0) // 2
    return g.div(g.binary("max", g.numbers(number), 0), 2)


def negated(g: GraphBuilder, number: Symbolic | Tensor) -> Symbolic | Tensor:
    """A number times -1."""
    return g.unary("neg", number) if isinstance(number, Tensor) else -number
