"""Pooling and resizing of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod

import numpy as np

from treadle.dialects.graph import PoolOp, ResizeOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import bounds_of, is_symbolic
from treadle.frontends.common.samples import Interpolation, Taps, taps
from treadle.frontends.common.sampling import interpolated
from treadle.frontends.torch.call import Call, converts

# Resizing pictures, one dimension after the other.


def _source(c: Call) -> Tensor:
    return c.tensor("input" if c.name.endswith(".vec") else "self")


def _scales(c: Call, x: Tensor, first: int) -> dict[int, Fraction]:
    """By dimension, the scale: what is given, or the quotient of the extents."""
    names = ("scales",) if x.rank == 3 else ("scales_d", "scales_h", "scales_w")[5 - x.rank :]
    factors = c.arguments.get("scale_factors") or [c.arguments.get(name) for name in names]
    quotients = [Fraction(int(c.shape[d]), int(x.shape[d])) for d in range(first, x.rank)]
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
    if is_symbolic((*c.shape, *x.shape)):
        return _whole(c, g, x)
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


def _whole(c: Call, g: GraphBuilder, x: Tensor) -> Tensor:
    """A picture whose extents change, resized by whole numbers, or not at all."""
    factors = [size // extent if size != extent else 1 for size, extent in zip(c.shape, x.shape, strict=True)]
    names = ("scales",) if x.rank == 3 else ("scales_d", "scales_h", "scales_w")[5 - x.rank :]
    scales = c.arguments.get("scale_factors") or [c.arguments.get(name) for name in names]
    spatial = zip(factors[-len(scales) :], scales, strict=True)
    given = [*factors[: -len(scales)], *(factor if scale is None else scale for factor, scale in spatial)]
    sizes = tuple(extent * factor for extent, factor in zip(x.shape, factors, strict=True))
    if is_symbolic(factors) or sizes != c.shape or given != factors:
        raise c.error(f"{list(x.shape)} is resized to {list(c.shape)}", "whole multiples of extents that change")
    return g.emit(lambda v: ResizeOp(v[0], bounds_of(sizes)), x, shape=sizes)


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


# Pooling.


def _pooled(c: Call, g: GraphBuilder, kind: str, rank: int, dilations: Sequence[int], count_pad: bool) -> Tensor:
    """Windows over the last dimensions; an input without a batch gets one."""
    x = c.tensor()
    kernel, pads = c.ints("kernel_size", rank), c.ints("padding", rank) * 2
    strides = c.ints("stride", rank) or kernel
    batched = x if x.rank == rank + 2 else g.reshape(x, (1, *x.shape))
    ceil = c.flag("ceil_mode")
    lists = (kernel, strides, pads, dilations)
    y = g.emit(lambda v: PoolOp(kind, v[0], *lists, ceil, count_pad), batched)
    return y if batched is x else g.reshape(y, (x.shape[0], *y.shape[2:]))


@converts("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool(c: Call, g: GraphBuilder) -> list[Tensor]:
    """The positions are not results."""
    rank = int(c.name[8])
    return [_pooled(c, g, "max", rank, c.ints("dilation", rank), False)]


@converts("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def average_pool(c: Call, g: GraphBuilder) -> Tensor:
    """Padding counts as zeros with `count_include_pad`, else not at all."""
    rank = int(c.name[8])
    divisor = c.arguments.get("divisor_override")
    if divisor is None:
        return _pooled(c, g, "avg", rank, [1] * rank, c.flag("count_include_pad"))
    if c.flag("ceil_mode"):
        raise c.error("divisor_override with ceil_mode", "one of them")
    size = prod(c.ints("kernel_size", rank))
    return g.mul(_pooled(c, g, "avg", rank, [1] * rank, True), size / divisor)


def _windows(extent: int, size: int) -> list[range]:
    """The elements of each window of an adaptive pooling."""
    return [range(n * extent // size, -(-(n + 1) * extent // size)) for n in range(size)]


def _indices(windows: Sequence[range]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Those elements, the last one repeated in smaller windows."""
    most = max(map(len, windows))
    return np.array([[min(w.start + n, w.stop - 1) for n in range(most)] for w in windows])


@converts("adaptive_avg_pool1d.default", "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_average_pool(c: Call, g: GraphBuilder) -> Tensor:
    """Means over windows that divide each dimension about equally."""
    x, sizes = c.tensor(), c.ints("output_size")
    first = x.rank - len(sizes)
    if all(size == 1 for size in sizes):
        return g.reduce("mean", x, range(first, x.rank), keep=True)
    y = g.widened(x)
    for dim, size in enumerate(sizes, first):
        windows = _windows(int(x.shape[dim]), size)
        most = max(map(len, windows))
        weights = np.array([[(n < len(w)) / len(w) for n in range(most)] for w in windows])
        y = interpolated(g, y, dim, Taps(_indices(windows), weights, np.zeros(size, np.bool_)))
    return g.cast(y, x.element)


@converts("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(c: Call, g: GraphBuilder) -> list[Tensor]:
    """Maxima over such windows; the positions are not results."""
    y, sizes = c.tensor(), c.ints("output_size")
    for dim, size in enumerate(sizes, y.rank - len(sizes)):
        parts = g.gather(y, g.constant(_indices(_windows(int(y.shape[dim]), size))), dim)
        y = g.reduce("max", parts, [dim + 1], keep=False)
    return [y]
