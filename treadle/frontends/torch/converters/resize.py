"""Resizing pictures, one dimension after the other."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from treadle.dialects.graph import ResizeOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.interpolation import Interpolation, taps
from treadle.frontends.common.resize import interpolated
from treadle.frontends.torch.call import Call
from treadle.frontends.torch.registry import converts


def _source(c: Call) -> Tensor:
    return c.tensor("input" if c.name.endswith(".vec") else "self")


def _scales(c: Call, x: Tensor, first: int) -> dict[int, Fraction]:
    """By dimension, the scale: what is given, or the quotient of the extents."""
    names = ("scales",) if x.rank == 3 else ("scales_d", "scales_h", "scales_w")[5 - x.rank :]
    factors = c.arguments.get("scale_factors") or [c.arguments.get(name) for name in names]
    quotients = [Fraction(c.shape[d], int(x.shape[d])) for d in range(first, x.rank)]
    chosen = [q if factor is None else Fraction(factor) for q, factor in zip(quotients, factors, strict=True)]
    return dict(enumerate(chosen, first))


@converts(
    "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec", "upsample_nearest1d.default",
    "upsample_nearest2d.default", "upsample_nearest3d.default",
)  # fmt: skip
def nearest(c: Call, g: GraphBuilder) -> Tensor:
    """The element below each position."""
    return _nearest(c, g, Interpolation("nearest", "asymmetric", "floor"))


@converts(
    "_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec",
    "_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default", "_upsample_nearest_exact3d.default",
)  # fmt: skip
def nearest_exact(c: Call, g: GraphBuilder) -> Tensor:
    """The element nearest to the middle of each position."""
    return _nearest(c, g, Interpolation("nearest", "half_pixel", "round_prefer_ceil"))


def _nearest(c: Call, g: GraphBuilder, how: Interpolation) -> Tensor:
    x = _source(c)
    chosen: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    for dim, scale in _scales(c, x, 2).items():
        read = taps(how, int(x.shape[dim]), c.shape[dim], scale, (0.0, 1.0))
        chosen[dim] = read.indices[np.arange(read.extent), read.weights.argmax(1)]
    plain = {d: np.arange(c.shape[d]) * int(x.shape[d]) // c.shape[d] for d in chosen}
    if all(np.array_equal(chosen[d], plain[d]) for d in chosen):
        return x if c.shape == x.shape else g.emit(lambda v: ResizeOp(v[0], c.shape), x)
    for dim, indices in chosen.items():
        x = g.gather(x, g.constant(indices), dim)
    return x


@converts(
    "upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec",
    "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec", "upsample_linear1d.default",
    "upsample_bilinear2d.default", "upsample_trilinear3d.default", "upsample_bicubic2d.default",
    "_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default",
)  # fmt: skip
def smooth(c: Call, g: GraphBuilder) -> Tensor:
    """Weighted sums of the neighbours; with `aa`, of as many as a smaller picture's pixel covers."""
    x, antialias = _source(c), "_aa" in c.name
    cubic, corners = "cubic" in c.name, c.flag("align_corners")
    coefficient = -0.5 if antialias else -0.75
    how = Interpolation(
        "cubic" if cubic else "linear", "align_corners" if corners else "half_pixel", "floor", coefficient, antialias,
        exclude_outside=antialias,
    )  # fmt: skip
    y = g.widened(x)
    for dim, scale in _scales(c, x, 2).items():
        size, extent = c.shape[dim], int(x.shape[dim])
        scale = Fraction(size, extent) if corners else scale
        if size != extent or scale != 1:
            c.reserve((size, 8 * max(4, round(4 / scale))), np.dtype(np.float64))
            y = interpolated(g, y, dim, taps(how, extent, size, scale, (0.0, 1.0)))
    return g.cast(y, x.element)
