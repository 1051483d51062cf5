"""Elements of pictures at positions that are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from xdsl.dialects.builtin import i64

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.samples import Taps

# Interpolation along a dimension.

_FEW = 4
"""As many taps are added up one by one; more are a reduction."""


def interpolated(g: GraphBuilder, x: Tensor, axis: int, read: Taps) -> Tensor:
    """The weighted sum of the elements along a dimension."""
    count = read.indices.shape[1]
    weights = read.weights.astype(x.dtype)
    if count <= _FEW:
        y: Tensor | None = None
        for n in range(count):
            along = weights[:, n].reshape(-1, *[1] * (x.rank - axis - 1))
            term = g.mul(g.gather(x, g.constant(read.indices[:, n]), axis), g.constant(along))
            y = term if y is None else g.add(y, term)
        assert y is not None
        return y
    along = weights.reshape(*weights.shape, *[1] * (x.rank - axis - 1))
    terms = g.mul(g.gather(x, g.constant(read.indices), axis), g.constant(along))
    return g.reduce("add", terms, [axis + 1], keep=False)


@dataclass(frozen=True)
class Tap:
    """Along one dimension a position for each point, its weight, and whether it lies inside; None: 1, and yes."""

    index: Tensor
    weight: Tensor | None
    inside: Tensor | None


def sampled(g: GraphBuilder, rows: Tensor, start: Tensor, dims: Sequence[int], taps: Sequence[Sequence[Tap]]) -> Tensor:
    """`[N, points, C]`: for each point the sum of elements at all combinations of taps, times their weights.

    rows:  `[positions, C]`, of every picture the positions in the row-major order of `dims`
    start: broadcast with `[N, points]`, the first row of the picture that a point lies in
    taps:  those of each dimension, `[N, points]`
    """
    total: Tensor | None = None
    for combination in product(*taps):
        term = _term(g, rows, start, dims, combination)
        total = term if total is None else g.add(total, term)
    assert total is not None
    return total


def _term(g: GraphBuilder, rows: Tensor, start: Tensor, dims: Sequence[int], taps: Sequence[Tap]) -> Tensor:
    linear: Tensor | None = None
    for tap, extent in zip(taps, dims, strict=True):
        linear = tap.index if linear is None else g.add(g.mul(linear, extent), tap.index)
    assert linear is not None
    value = g.widened(g.gather(rows, g.add(linear, start), 0))
    points = (*linear.shape, 1)
    for tap in taps:
        if tap.inside is not None:
            value = g.where(g.reshape(tap.inside, points), value, g.scalar(0, value))
    weights = [g.cast(tap.weight, value.element) for tap in taps if tap.weight is not None]
    if not weights:
        return value
    weight = weights[0]
    for other in weights[1:]:
        weight = g.mul(weight, other)
    return g.mul(value, g.reshape(weight, points))


def linear_taps(g: GraphBuilder, x: Tensor, extent: int) -> list[Tap]:
    """The two elements next to each coordinate; those outside are 0."""
    left = g.unary("floor", x)
    ratio = g.sub(x, left)
    weights = (g.add(g.unary("neg", ratio), 1), ratio)
    return [zero_outside(g, g.add(left, n), weight, extent) for n, weight in enumerate(weights)]


def zero_outside(g: GraphBuilder, x: Tensor, weight: Tensor | None, extent: int) -> Tap:
    """A whole position as a tap, whose element is 0 where it lies outside."""
    inside = g.binary("and", g.binary("ge", x, 0), g.binary("le", x, extent - 1))
    return Tap(nearest_index(g, x, extent), weight, inside)


def nearest_index(g: GraphBuilder, x: Tensor, extent: int) -> Tensor:
    """A whole position as an index; one outside is moved inside."""
    return g.cast(g.binary("min", g.binary("max", x, 0), extent - 1), i64)
