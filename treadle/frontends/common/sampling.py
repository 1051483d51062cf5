"""Elements of pictures at positions that are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from xdsl.dialects.builtin import i64

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import bound_of
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


# Elements at the points of a grid.
#
# Source: the specification of ONNX's GridSample, which is PyTorch's `grid_sample`; for the cubic weights Keys, "Cubic
# convolution interpolation for digital image processing", IEEE Transactions on Acoustics, Speech, and Signal Processing
# 29(6), 1981.

PADDINGS = ("zeros", "border", "reflection")
"""What is read outside of a picture."""
_CUBIC = -0.75


def grid_sampled(g: GraphBuilder, x: Tensor, grid: Tensor, mode: str, padding: str, corners: bool) -> Tensor:
    """`x [N, C, ...]` at the points of `grid [N, ..., dimensions]`, whose coordinates are from -1 to 1, the last
    dimension first.

    mode:    `linear`, `nearest` or `cubic`
    corners: whether -1 and 1 are the middles of the elements at the border, or the border
    """
    dims = x.shape[2:]
    batch, channels, points = x.shape[0], x.shape[1], prod(grid.shape[1:-1])
    rows = g.reshape(g.transpose(x, (0, *range(2, x.rank), 1)), (batch * prod(dims), channels))
    flat = g.reshape(g.widened(grid), (batch, points, len(dims)))
    taps: list[list[Tap]] = []
    for d, extent in enumerate(dims):
        coordinate = g.reshape(g.narrow(flat, 2, len(dims) - 1 - d, 1), (batch, points))
        taps.append(_grid_taps(g, coordinate, extent, mode, padding, corners))
    start = g.reshape(g.iota(batch, bound_of(prod(dims))), (batch, 1))
    moved = g.transpose(g.cast(sampled(g, rows, start, dims, taps), x.element), (0, 2, 1))
    return g.reshape(moved, (batch, channels, *grid.shape[1:-1]))


def _grid_taps(g: GraphBuilder, grid: Tensor, extent: int, mode: str, padding: str, corners: bool) -> list[Tap]:
    unit = g.add(grid, 1)
    x = g.mul(g.div(unit, 2), extent - 1) if corners else g.div(g.sub(g.mul(unit, extent), 1), 2)
    x = g.unary("round", x) if mode == "nearest" else x
    if padding == "reflection":
        x = _reflected(g, x, extent, corners)
    if mode == "nearest":
        return [_tap(g, x, None, extent, padding, corners)]
    left = g.unary("floor", x)
    ratio = g.sub(x, left)
    rest = g.add(g.unary("neg", ratio), 1)
    if mode == "linear":
        weights = {0: rest, 1: ratio}
    else:
        weights = {-1: _far(g, g.add(ratio, 1)), 0: _near(g, ratio), 1: _near(g, rest), 2: _far(g, g.add(rest, 1))}
    return [_tap(g, g.add(left, n), weight, extent, padding, corners) for n, weight in weights.items()]


def _near(g: GraphBuilder, d: Tensor) -> Tensor:
    line = g.sub(g.mul(d, _CUBIC + 2), _CUBIC + 3)
    return g.add(g.mul(g.mul(line, d), d), 1)


def _far(g: GraphBuilder, d: Tensor) -> Tensor:
    square = g.add(g.mul(g.sub(g.mul(d, _CUBIC), 5 * _CUBIC), d), 8 * _CUBIC)
    return g.sub(g.mul(square, d), 4 * _CUBIC)


def _tap(g: GraphBuilder, x: Tensor, weight: Tensor | None, extent: int, padding: str, corners: bool) -> Tap:
    """A whole position as an index; one outside, or NaN, is moved inside."""
    if padding == "zeros":
        return zero_outside(g, x, weight, extent)
    x = _reflected(g, x, extent, corners) if padding == "reflection" else x
    return Tap(nearest_index(g, x, extent), weight, None)


def _reflected(g: GraphBuilder, x: Tensor, extent: int, corners: bool) -> Tensor:
    """What lies outside is mirrored at the nearer border until it is inside."""
    low, high = (0.0, extent - 1.0) if corners else (-0.5, extent - 0.5)
    span = high - low
    if span == 0:
        return g.broadcast(g.scalar(low, x), x.shape)
    phase = g.binary("mod", g.unary("abs", g.sub(x, low)), 2 * span)
    folded = g.binary("min", phase, g.add(g.unary("neg", phase), 2 * span))
    within = g.binary("and", g.binary("ge", x, low), g.binary("le", x, high))
    return g.where(within, x, g.add(folded, low))
