"""Resize and Upsample, one dimension after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import floor, inf

import numpy as np
from numpy.typing import NDArray
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import ResizeOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbolic, bound_of, bounds_of, is_symbolic
from treadle.frontends.common.interpolation import COORDINATES, MODES, ROUNDINGS, Interpolation, Taps, taps
from treadle.frontends.common.resize import interpolated
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts
from treadle.frontends.onnx.tensor_data import Array

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
