"""RoiAlign: regions of pictures as pictures of one size, sampled between elements.

Source: He et al., "Mask R-CNN", ICCV 2017, and the specification of RoiAlign.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from xdsl.dialects.builtin import i64

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.sampling import Tap
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

_HALF = ("half_pixel", "output_half_pixel")


@converts("RoiAlign", since=10)
def roi_align_10(node: Node, g: GraphBuilder) -> Tensor:
    """Coordinates are those of elements."""
    return _roi_align(node, g, half_pixel=False)


@converts("RoiAlign", since=16)
def roi_align(node: Node, g: GraphBuilder) -> Tensor:
    """Coordinates are those of elements' centres, by default."""
    return _roi_align(node, g, node.string("coordinate_transformation_mode", _HALF[0], _HALF) == _HALF[0])


def _roi_align(node: Node, g: GraphBuilder, half_pixel: bool) -> Tensor:
    x, regions, batch = node.input(0), node.input(1), node.input(2)
    mode, samples = node.string("mode", "avg", ("avg", "max")), node.int("sampling_ratio", 0)
    sizes = (node.int("output_height", 1), node.int("output_width", 1))
    if samples < 1 or min(sizes) < 1:
        message = f"sampling_ratio {samples} of results of {sizes}: 0 has as many samples as a region's size says"
        raise node.error(message, "numbers from 1 upwards")
    if x.rank != 4 or regions.rank != 2 or regions.shape[1] != 4 or batch.shape != (regions.shape[0],):
        shapes = f"an input of shape {x.shape}, regions {regions.shape}, their pictures {batch.shape}"
        raise node.error(shapes, "[N, C, H, W], [R, 4], [R]")
    corners = g.mul(g.widened(regions), node.float("spatial_scale", 1.0))
    corners = g.sub(corners, 0.5) if half_pixel else corners
    count, (channels, height, width) = regions.shape[0], x.shape[1:]
    taps: list[list[Tap]] = []
    for d, extent in enumerate((height, width)):
        start, end = (g.narrow(corners, 1, n, 1) for n in (1 - d, 3 - d))
        length = g.sub(end, start) if half_pixel else g.binary("max", g.sub(end, start), 1)
        node.reserve((sizes[d] * samples,), np.dtype(np.float64))
        places = (np.arange(sizes[d] * samples) + 0.5) / (sizes[d] * samples)
        position = g.add(g.mul(length, g.constant(places[None].astype(length.dtype))), start)
        taps.append(_taps(g, position, extent, (count, -1, 1) if d == 0 else (count, 1, -1)))
    rows = g.reshape(g.transpose(x, (0, 2, 3, 1)), (x.shape[0] * height * width, channels))
    first = g.mul(g.reshape(g.cast(batch, i64), (count, 1, 1)), height * width)
    values = [_value(g, rows, g.add(first, g.add(g.mul(v.index, width), h.index)), v, h) for v, h in product(*taps)]
    whole = values[0]
    for other in values[1:]:
        whole = g.add(whole, other) if mode == "avg" else g.binary("max", whole, other)
    whole = g.reshape(whole, (count, sizes[0], samples, sizes[1], samples, channels))
    whole = g.reduce("mean" if mode == "avg" else "max", whole, [2, 4], keep=False)
    return g.cast(g.transpose(whole, (0, 3, 1, 2)), x.element)


def _taps(g: GraphBuilder, x: Tensor, extent: int, shape: tuple[int, int, int]) -> list[Tap]:
    """The two elements next to each position `[R, samples]`; up to one element outside are those at the border."""
    full = tuple(x.shape[1] if e < 0 else e for e in shape)
    inside = g.reshape(g.binary("and", g.binary("ge", x, -1), g.binary("le", x, extent)), full)
    x = g.reshape(g.binary("min", g.binary("max", x, 0), extent - 1), full)
    low = g.unary("floor", x)
    ratio = g.sub(x, low)
    high = g.binary("min", g.add(low, 1), extent - 1)
    rest = g.add(g.unary("neg", ratio), 1)
    return [Tap(g.cast(index, i64), weight, inside) for index, weight in ((low, rest), (high, ratio))]


def _value(g: GraphBuilder, rows: Tensor, index: Tensor, v: Tap, h: Tap) -> Tensor:
    """`[R, samples, samples, C]`, an element times its weight; 0 for a position outside."""
    assert v.weight is not None and h.weight is not None and v.inside is not None and h.inside is not None
    value, points = g.widened(g.gather(rows, index, 0)), (*index.shape, 1)
    weight = g.cast(g.mul(v.weight, h.weight), value.element)
    inside = g.binary("and", v.inside, h.inside)
    return g.where(g.reshape(inside, points), g.mul(value, g.reshape(weight, points)), g.scalar(0, value))
