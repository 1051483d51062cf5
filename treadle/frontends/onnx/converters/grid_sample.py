"""GridSample: elements at positions that are computed.

Source: the specification of GridSample, which is PyTorch's `grid_sample`; for the cubic weights Keys, "Cubic
convolution interpolation for digital image processing", IEEE Transactions on Acoustics, Speech, and Signal Processing
29(6), 1981.
"""

from __future__ import annotations

from math import prod

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import bound_of
from treadle.frontends.common.sampling import Tap, nearest_index, sampled, zero_outside
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

PADDINGS = ("zeros", "border", "reflection")
MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}
_CUBIC = -0.75


@converts("GridSample", since=16)
def grid_sample(node: Node, g: GraphBuilder) -> Tensor:
    """`x [N, C, ...]` at the points of `grid [N, ..., dimensions]`, whose coordinates are from -1 to 1, the last
    dimension first."""
    x, grid = node.input(0), node.input(1)
    mode = MODES[node.string("mode", "linear" if node.opset >= 20 else "bilinear", tuple(MODES))]
    padding, corners = node.string("padding_mode", "zeros", PADDINGS), node.flag("align_corners")
    dims = x.shape[2:]
    if not dims or grid.rank != x.rank or grid.shape[-1] != len(dims) or grid.shape[0] != x.shape[0] or 0 in x.shape:
        shapes = f"a grid of shape {grid.shape} for an input of shape {x.shape}"
        raise node.error(shapes, f"a grid [{x.shape[0]}, ..., {len(dims)}] of the input's rank")
    batch, channels, points = x.shape[0], x.shape[1], prod(grid.shape[1:-1])
    rows = g.reshape(g.transpose(x, (0, *range(2, x.rank), 1)), (batch * prod(dims), channels))
    flat = g.reshape(g.widened(grid), (batch, points, len(dims)))
    taps: list[list[Tap]] = []
    for d, extent in enumerate(dims):
        coordinate = g.reshape(g.narrow(flat, 2, len(dims) - 1 - d, 1), (batch, points))
        taps.append(_taps(g, coordinate, extent, mode, padding, corners))
    start = g.reshape(g.iota(batch, bound_of(prod(dims))), (batch, 1))
    moved = g.transpose(g.cast(sampled(g, rows, start, dims, taps), x.element), (0, 2, 1))
    return g.reshape(moved, (batch, channels, *grid.shape[1:-1]))


def _taps(g: GraphBuilder, grid: Tensor, extent: int, mode: str, padding: str, corners: bool) -> list[Tap]:
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
