"""Resize and Upsample to the nearest neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf

import numpy as np

from treadle.dialects.graph import ResizeOp
from treadle.frontends.onnx.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts
from treadle.frontends.onnx.tensor_data import Array

SUPPORTED = (
    "mode nearest with coordinate_transformation_mode asymmetric and nearest_mode floor, "
    "or by whole factors with half_pixel and round_prefer_floor or round_prefer_ceil"
)


@converts("Upsample", since=7)
def upsample_attribute(node: Node, g: GraphBuilder) -> Tensor:
    """Scales as an attribute."""
    return _by_scales(node, g, node.floats("scales") or [])


@converts("Upsample", since=9)
@converts("Resize", since=10)
def scales_input(node: Node, g: GraphBuilder) -> Tensor:
    """Scales as the second input; the coordinates are asymmetric."""
    return _by_scales(node, g, _floats(node.known(1, "scales")))


def _by_scales(node: Node, g: GraphBuilder, scales: list[float]) -> Tensor:
    if node.string("mode", "nearest", ("nearest", "linear", "bilinear")) != "nearest":
        raise node.error("this interpolation is not supported", SUPPORTED)
    x = node.input()
    return _nearest(g, x, _scaled_extents(node, x, list(range(x.rank)), scales))


@converts("Resize", since=11)
def resize(node: Node, g: GraphBuilder) -> Tensor:
    """Sizes or scales, of all axes or (since opset 18) of some."""
    node.ignore("cubic_coeff_a", "exclude_outside", "extrapolation_value", "antialias")
    x = node.input()
    listed = node.ints("axes")
    axes = list(range(x.rank)) if listed is None else node.axes(listed, x.rank)
    policy = node.string("keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))
    if node.optional(3) is not None and node.input(3).shape != (0,):
        if policy != "stretch":
            raise node.error(f"keep_aspect_ratio_policy {policy}", "stretch")
        shape = _replaced(node, x, axes, node.known_ints(3, "sizes"))
    else:
        shape = _scaled_extents(node, x, axes, _floats(node.known(2, "scales")))
    _check_mode(node, x.shape, shape)
    return _nearest(g, x, shape)


def _check_mode(node: Node, shape: Sequence[int], target: Sequence[int]) -> None:
    """TreadleError unless the node's attributes choose the elements that `graph.resize` does."""
    mode = _word(node, "mode", "nearest")
    coordinates = _word(node, "coordinate_transformation_mode", "half_pixel")
    rounding = _word(node, "nearest_mode", "round_prefer_floor")
    whole = all(e > 0 and t % e == 0 for e, t in zip(shape, target, strict=True))
    same = tuple(shape) == tuple(target)
    # With a whole factor s, (r + 1/2) / s - 1/2 lies strictly between -1/2 and 1/2: every r rounds to 0.
    halves = coordinates in ("half_pixel", "half_pixel_symmetric") and rounding.startswith("round_prefer") and whole
    fits = mode == "nearest" and (same or halves or (coordinates == "asymmetric" and rounding == "floor"))
    if not fits:
        raise node.error(
            f"mode {mode}, coordinate_transformation_mode {coordinates}, nearest_mode {rounding}", SUPPORTED
        )


def _word(node: Node, name: str, default: str) -> str:
    words = {
        "mode": ("nearest", "linear", "cubic"),
        "coordinate_transformation_mode": (
            "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
            "tf_half_pixel_for_nn", "tf_crop_and_resize",
        ),
        "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    }  # fmt: skip
    return node.string(name, default, words[name])


def _floats(array: Array) -> list[float]:
    return [float(v.item()) for v in array.reshape(-1)]


def _replaced(node: Node, x: Tensor, axes: Sequence[int], values: Sequence[int]) -> list[int]:
    if len(values) != len(axes) or min(values, default=0) < 0:
        raise node.error(f"sizes {list(values)} for {len(axes)} axes", f"{len(axes)} extents")
    chosen = dict(zip(axes, values, strict=True))
    return [chosen.get(d, e) for d, e in enumerate(x.shape)]


def _scaled_extents(node: Node, x: Tensor, axes: Sequence[int], scales: Sequence[float]) -> list[int]:
    """Extents by scales. ONNX selects elements by the scale, `graph.resize` by the extents: both have to agree."""
    if len(scales) != len(axes) or not all(0 < scale < inf for scale in scales):
        raise node.error(f"scales {list(scales)} for {len(axes)} axes", f"{len(axes)} finite numbers above 0")
    extents = [x.shape[axis] for axis in axes]
    sizes = [floor(e * s) for e, s in zip(extents, scales, strict=True)]
    node.check_volume((max(sizes, default=0),), np.dtype(np.float64))
    for axis, extent, size, scale in zip(axes, extents, sizes, scales, strict=True):
        positions = np.arange(size)
        if not np.array_equal(np.floor(positions / scale), positions * extent // max(size, 1)):
            raise node.error(f"scale {scale} of axis {axis} leaves no whole extent of {extent}", "scales that do")
    return _replaced(node, x, axes, sizes)


def _nearest(g: GraphBuilder, x: Tensor, shape: Sequence[int]) -> Tensor:
    return x if tuple(shape) == x.shape else g.emit(lambda v: ResizeOp(v[0], shape), x)
