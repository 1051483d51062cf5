"""Pictures at positions that are computed: Resize, GridSample, RoiAlign, DeformConv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import floor, inf, prod

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import i64
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import ResizeOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import plus_bias
from treadle.frontends.common.extent import Extent, Symbolic, bound_of, bounds_of, is_symbolic
from treadle.frontends.common.samples import COORDINATES, MODES, ROUNDINGS, Interpolation, Taps, taps
from treadle.frontends.common.sampling import PADDINGS, Tap, grid_sampled, interpolated, linear_taps, sampled
from treadle.frontends.common.window import Window
from treadle.frontends.onnx.converters.reshape import read_window
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.tensor_data import Array

# GridSample: elements at positions that are computed.

_GRID_MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}


@converts("GridSample", since=16)
def grid_sample(node: Node, g: GraphBuilder) -> Tensor:
    """`x [N, C, ...]` at the points of `grid [N, ..., dimensions]`, whose coordinates are from -1 to 1, the last
    dimension first."""
    x, grid = node.input(0), node.input(1)
    mode = _GRID_MODES[node.string("mode", "linear" if node.opset >= 20 else "bilinear", tuple(_GRID_MODES))]
    padding, corners = node.string("padding_mode", "zeros", PADDINGS), node.flag("align_corners")
    dims = x.shape[2:]
    if not dims or grid.rank != x.rank or grid.shape[-1] != len(dims) or grid.shape[0] != x.shape[0] or 0 in x.shape:
        shapes = f"a grid of shape {grid.shape} for an input of shape {x.shape}"
        raise node.error(shapes, f"a grid [{x.shape[0]}, ..., {len(dims)}] of the input's rank")
    return grid_sampled(g, x, grid, mode, padding, corners)


# RoiAlign: regions of pictures as pictures of one size, sampled between elements.
#
# Source: He et al., "Mask R-CNN", ICCV 2017, and the specification of RoiAlign.

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
        taps.append(_roi_taps(g, position, extent, (count, -1, 1) if d == 0 else (count, 1, -1)))
    rows = g.reshape(g.transpose(x, (0, 2, 3, 1)), (x.shape[0] * height * width, channels))
    first = g.mul(g.reshape(g.cast(batch, i64), (count, 1, 1)), height * width)
    values = [_value(g, rows, g.add(first, g.add(g.mul(v.index, width), h.index)), v, h) for v, h in product(*taps)]
    whole = values[0]
    for other in values[1:]:
        whole = g.add(whole, other) if mode == "avg" else g.binary("max", whole, other)
    whole = g.reshape(whole, (count, sizes[0], samples, sizes[1], samples, channels))
    whole = g.reduce("mean" if mode == "avg" else "max", whole, [2, 4], keep=False)
    return g.cast(g.transpose(whole, (0, 3, 1, 2)), x.element)


def _roi_taps(g: GraphBuilder, x: Tensor, extent: int, shape: tuple[int, int, int]) -> list[Tap]:
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


# DeformConv: a convolution whose windows read at positions that are computed.
#
# Source: Zhu et al., "Deformable ConvNets v2: more deformable, better results", CVPR 2019; outside of the picture is 0.


@converts("DeformConv", since=19)
def deform_conv(node: Node, g: GraphBuilder) -> Tensor:
    """`x [N, C, spatial...]`, read where `offset [N, offset_group * kernel * dims, out...]` moves a window's elements,
    times `mask [N, offset_group * kernel, out...]` if there is one."""
    x, w, offset, bias, mask = (node.optional(n) for n in range(5))
    if x is None or w is None or offset is None:
        raise node.error("an input is missing", "an input, weights and offsets")
    groups, parts = node.int("group", 1), node.int("offset_group", 1)
    kernel = w.shape[2:]
    if (given := node.ints("kernel_shape")) is not None and tuple(given) != kernel:
        raise node.error(f"kernel_shape {given} contradicts the weights' {list(kernel)}", str(list(kernel)))
    window = read_window(node, x.shape, kernel)
    out, size = offset.shape[2:], prod(kernel)
    _check(node, x, w, offset, mask, window)
    node.reserve((size, prod(out), 4), np.dtype(np.float64))
    batch, channels = x.shape[:2]
    taps = [linear_taps(g, _coordinates(g, offset, window, d, parts), extent) for d, extent in enumerate(x.shape[2:])]
    pictures = g.reshape(x, (batch * parts, channels // parts, prod(x.shape[2:])))
    rows = g.reshape(g.transpose(pictures, (0, 2, 1)), (batch * parts * prod(x.shape[2:]), channels // parts))
    start = g.reshape(g.iota(batch * parts, bound_of(prod(x.shape[2:]))), (batch * parts, 1))
    columns = sampled(g, rows, start, x.shape[2:], taps)
    if mask is not None:
        columns = g.mul(columns, g.reshape(g.cast(mask, columns.element), (*columns.shape[:2], 1)))
    columns = g.reshape(columns, (batch, parts, size, prod(out), channels // parts))
    columns = g.reshape(g.transpose(columns, (0, 3, 1, 4, 2)), (batch, prod(out), groups, channels // groups * size))
    filters = g.reshape(g.widened(w), (groups, w.shape[0] // groups, channels // groups * size))
    y = g.matmul(g.transpose(columns, (0, 2, 1, 3)), _each(g, g.transpose(filters, (0, 2, 1)), batch))
    y = g.reshape(g.transpose(y, (0, 1, 3, 2)), (batch, w.shape[0], *out))
    return plus_bias(g, g.cast(y, x.element), bias)


def _each(g: GraphBuilder, x: Tensor, batch: int) -> Tensor:
    return g.broadcast(g.reshape(x, (1, *x.shape)), (batch, *x.shape))


def _check(node: Node, x: Tensor, w: Tensor, offset: Tensor, mask: Tensor | None, window: Window) -> None:
    groups, parts, size = node.int("group", 1), node.int("offset_group", 1), prod(window.kernel)
    channels, rank = x.shape[1], x.rank - 2
    if groups < 1 or parts < 1 or channels != w.shape[1] * groups or w.shape[0] % groups or channels % parts:
        message = f"{channels} channels, weights of shape {w.shape}, group {groups}, offset_group {parts}"
        raise node.error(message, "groups that divide the channels")
    out = [
        (x.shape[d + 2] + window.pads[d] + window.pads[d + rank] - window.dilations[d] * (k - 1) - 1)
        // window.strides[d]
        + 1
        for d, k in enumerate(window.kernel)
    ]
    for what, tensor, each in (("offset", offset, size * rank), ("mask", mask, size)):
        wanted = (x.shape[0], parts * each, *out)
        if tensor is not None and tensor.shape != wanted:
            raise node.error(f"{what} of shape {tensor.shape}", str(wanted))


def _coordinates(g: GraphBuilder, offset: Tensor, window: Window, d: int, parts: int) -> Tensor:
    """`[N * offset_group, kernel * out]` along a dimension of the picture."""
    out, rank, size = offset.shape[2:], len(window.kernel), prod(window.kernel)
    inner = np.indices(window.kernel)[d].reshape(size, 1) * window.dilations[d]
    outer = np.indices(out)[d].reshape(1, -1) * window.strides[d]
    places = (inner + outer - window.pads[d]).astype(np.float64).reshape(1, -1)
    moved = g.reshape(g.widened(offset), (offset.shape[0] * parts, size, rank, prod(out)))
    moved = g.reshape(g.narrow(moved, 2, d, 1), (offset.shape[0] * parts, size * prod(out)))
    return g.add(moved, g.constant(places.astype(moved.dtype)))


# Resize and Upsample, one dimension after the other.

POLICIES = ("stretch", "not_larger", "not_smaller")


@converts("Upsample", since=7)
def upsample_attribute(node: Node, g: GraphBuilder) -> Tensor:
    """Scales as an attribute."""
    return _asymmetric(node, g, node.floats("scales") or [])


@converts("Upsample", since=9)
@converts("Resize", since=10)
def scales_input(node: Node, g: GraphBuilder) -> Tensor:
    """Scales as the second input; the coordinates are asymmetric."""
    return _asymmetric(node, g, _floats(node.known(1, "scales")))


def _asymmetric(node: Node, g: GraphBuilder, scales: Sequence[float]) -> Tensor:
    mode = node.string("mode", "nearest", ("nearest", "linear", "bilinear"))
    axes = list(range(node.input().rank))
    how = Interpolation("nearest" if mode == "nearest" else "linear")
    return _resized(node, g, how, _by_scales(node, axes, scales), {})


@converts("Resize", since=11)
def resize(node: Node, g: GraphBuilder) -> Tensor:
    """Sizes or scales, of all axes or (since opset 18) of some."""
    x = node.input()
    listed = node.ints("axes")
    axes = list(range(x.rank)) if listed is None else node.axes(listed, x.rank)
    policy = node.string("keep_aspect_ratio_policy", "stretch", POLICIES)
    how = Interpolation(
        node.string("mode", "nearest", MODES),
        node.string("coordinate_transformation_mode", "half_pixel", COORDINATES),
        node.string("nearest_mode", "round_prefer_floor", ROUNDINGS),
        node.float("cubic_coeff_a", -0.75),
        node.flag("antialias"),
        node.flag("exclude_outside"),
    )
    roi: dict[int, tuple[float, float]] = {}
    node.ignore("extrapolation_value")  # nothing lies outside, but for tf_crop_and_resize, which reads it
    if how.coordinates == "tf_crop_and_resize":
        bounds = _floats(node.known(1, "roi"))
        if len(bounds) != 2 * len(axes):
            raise node.error(f"roi {bounds} for {len(axes)} axes", f"{2 * len(axes)} numbers")
        roi = {axis: (bounds[n], bounds[n + len(axes)]) for n, axis in enumerate(axes)}
    if node.optional(3) is not None and node.input(3).shape != (0,):
        sizes = _by_sizes(node, axes, node.known_ints(3, "sizes"), policy)
    else:
        sizes = _by_scales(node, axes, _floats(node.known(2, "scales")))
    return _resized(node, g, how, sizes, roi)


Sizes = Mapping[int, tuple[Symbolic, Fraction]]
"""By dimension, its new extent and the scale, which need not give it exactly."""


def _floats(array: Array) -> list[float]:
    return [float(v.item()) for v in array.reshape(-1)]


def _by_scales(node: Node, axes: Sequence[int], scales: Sequence[float]) -> Sizes:
    if len(scales) != len(axes) or not all(0 < scale < inf for scale in scales):
        raise node.error(f"scales {list(scales)} for {len(axes)} axes", f"{len(axes)} finite numbers above 0")
    extents = [node.input().shape[axis] for axis in axes]
    exact = map(Fraction, scales)
    return {a: (e * s.numerator // s.denominator, s) for a, e, s in zip(axes, extents, exact, strict=True)}


def _by_sizes(node: Node, axes: Sequence[int], sizes: Sequence[int], policy: str) -> Sizes:
    extents = [node.input().shape[axis] for axis in axes]
    if len(sizes) != len(axes) or any(s < 0 for s in sizes):
        raise node.error(f"sizes {list(sizes)} for {len(axes)} axes", f"{len(axes)} extents")
    if any(e == 0 and s > 0 for e, s in zip(extents, sizes, strict=True)):
        raise node.error(f"sizes {list(sizes)} of extents {extents}", "an extent of 0 for one of 0")
    scales = [_scale(size, extent) for extent, size in zip(extents, sizes, strict=True)]
    if policy != "stretch":
        if is_symbolic(extents) or is_symbolic(sizes):
            raise node.error(f"keep_aspect_ratio_policy {policy} of {extents}", "stretch, or static extents")
        scale = min(scales) if policy == "not_larger" else max(scales)
        sizes = [floor(scale * e + Fraction(1, 2)) for e in extents]
        scales = [scale] * len(axes)
    return {a: (size, scale or Fraction(1)) for a, size, scale in zip(axes, sizes, scales, strict=True)}


def _scale(size: Symbolic, extent: Symbolic) -> Fraction:
    """The quotient of two extents; VerifyException where it is another one in some calls."""
    if not is_symbolic((size, extent)):
        return Fraction(size, extent) if extent else Fraction(1)
    factor = size // extent
    if isinstance(factor, Extent) or factor * extent != size:
        raise VerifyException(f"extent {extent} is resized to {size}, which is no whole multiple")
    return Fraction(factor)


def _resized(
    node: Node, g: GraphBuilder, how: Interpolation, sizes: Sizes, roi: Mapping[int, tuple[float, float]]
) -> Tensor:
    x = node.input()
    read: dict[int, Taps] = {}
    for axis, (size, scale) in sizes.items():
        if size == x.shape[axis] and scale == 1 and how.coordinates != "tf_crop_and_resize":
            continue
        reach = max(2, round(4 / scale)) if how.antialias else 4
        # The arrays from which taps follow are several times larger than they.
        node.check_volume((size, 8 * reach), np.dtype(np.float64))
        node.reserve((size, reach), np.dtype(np.float64))
        # Where extents are symbolic, they tell whether each element is the nearest below: nothing else is accepted.
        read[axis] = taps(how, bound_of(x.shape[axis]), bound_of(size), scale, roi.get(axis, (0.0, 1.0)))
    if how.mode == "nearest" and _is_whole(x, read):
        shape = [sizes[d][0] if d in sizes else e for d, e in enumerate(x.shape)]
        return x if tuple(shape) == x.shape else g.emit(lambda v: ResizeOp(v[0], bounds_of(shape)), x, shape=shape)
    if is_symbolic([x.shape[axis] for axis in read]):
        message = f"mode {how.mode} with positions of mode {how.coordinates} of shape {list(x.shape)}"
        raise node.error(message, "static extents; symbolic ones by a whole factor, each element to its nearest below")
    if how.mode == "nearest":
        return _nearest(node, g, x, read)
    if not x.is_float:
        raise node.error(f"mode {how.mode} of {x.element}", "mode nearest, or floats")
    y = g.widened(x)
    for axis, each in read.items():
        y = interpolated(g, y, axis, each)
    return g.cast(_extrapolated(node, g, y, read), x.element)


def _is_whole(x: Tensor, read: Mapping[int, Taps]) -> bool:
    """Whether element `i` of a dimension is the source's `i * extent // size`."""
    return all(
        np.array_equal(_chosen(each), np.arange(each.extent) * bound_of(x.shape[axis]) // max(each.extent, 1))
        and not each.outside.any()
        for axis, each in read.items()
    )


def _chosen(read: Taps) -> NDArray[np.int64]:
    """The one position that each element of a nearest mode reads."""
    return read.indices[np.arange(read.extent), read.weights.argmax(1)]


def _nearest(node: Node, g: GraphBuilder, x: Tensor, read: Mapping[int, Taps]) -> Tensor:
    y = x
    for axis, each in read.items():
        y = g.gather(y, g.constant(_chosen(each)), axis)
    return _extrapolated(node, g, y, read)


def _extrapolated(node: Node, g: GraphBuilder, y: Tensor, read: Mapping[int, Taps]) -> Tensor:
    value = g.scalar(node.float("extrapolation_value", 0.0), y)
    for axis, each in read.items():
        if each.outside.any():
            mask = each.outside.reshape(-1, *[1] * (y.rank - axis - 1))
            y = g.where(g.constant(mask), value, y)
    return y
