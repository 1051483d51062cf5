"""Where ONNX's Resize reads along one dimension: for each position of the result some positions and their weights.

Source: the specification of Resize, and Keys, "Cubic convolution interpolation for digital image processing", IEEE
Transactions on Acoustics, Speech, and Signal Processing 29(6), 1981.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Interpolation:
    """How elements between those that there are follow from them, as the attributes of Resize say it."""

    mode: str = "nearest"
    coordinates: str = "asymmetric"
    rounding: str = "floor"
    cubic_coefficient: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False


@dataclass(frozen=True)
class Taps:
    """`indices[r]` and `weights[r]` are what position `r` of the result reads; `outside` marks those that lie in no
    element, for which a value is given."""

    indices: Ints
    weights: Floats
    outside: NDArray[np.bool_]

    @property
    def extent(self) -> int:
        """Of the result."""
        return len(self.indices)


def taps(how: Interpolation, extent: int, size: int, scale: Fraction, roi: tuple[float, float]) -> Taps:
    """Those of a dimension of `extent` elements that becomes one of `size`, by a scale of about `size / extent`.

    scale: as a fraction, so that an element that is met exactly is found: `198 / (306 / 187)` rounds to less than 121.
    roi: what `tf_crop_and_resize` crops to, in units of the extent
    """
    x = _sources(how.coordinates, extent, size, scale, roi)
    outside = np.zeros(size, np.bool_)
    if how.coordinates == "tf_crop_and_resize":
        outside = (x < 0) | (x > extent - 1)
        x = np.where(outside, 0.0, x)
    # The left neighbour, so that the ratio lies in (0, 1].
    left = np.ceil(x) - 1
    offsets, weights = _weights(how, x - left, float(scale))
    indices = left.astype(np.int64)[:, None] + offsets
    if how.exclude_outside:
        weights = np.where((indices < 0) | (indices >= extent), 0.0, weights)
        weights = weights / weights.sum(1, keepdims=True)
    return Taps(np.clip(indices, 0, extent - 1), weights, outside)


def _sources(coordinates: str, extent: int, size: int, scale: Fraction, roi: tuple[float, float]) -> Floats:
    """The position of each element of the result among those that there are: of a quotient of numbers that float64
    has, so that it is rounded once."""
    r, width = np.arange(size, dtype=np.float64), scale * extent
    over, under = float(scale.denominator), float(scale.numerator)
    if coordinates == "asymmetric":
        return r * over / under
    if coordinates == "align_corners":
        return r * 0 if width == 1 else r * (extent - 1) / float(width - 1)
    if coordinates == "tf_half_pixel_for_nn":
        return (r + 0.5) * over / under
    if coordinates == "tf_crop_and_resize":
        start, end = roi
        if width == 1:
            return np.full(size, (start + end) / 2 * (extent - 1))
        return start * (extent - 1) + r * (end - start) * (extent - 1) / float(width - 1)
    if coordinates == "pytorch_half_pixel" and width == 1:
        return np.full(size, -0.5)
    half = (r + 0.5) * over / under - 0.5
    return half + extent / 2 * float(1 - size / width) if coordinates == "half_pixel_symmetric" else half


def _weights(how: Interpolation, ratio: Floats, scale: float) -> tuple[Ints, Floats]:
    """Offsets from the left neighbour, the same for all positions, and the weights `[positions, offsets]`.

    ratio: distances from the left neighbours, in (0, 1]
    """
    if how.mode == "nearest":
        # An element that is met exactly is the right neighbour.
        right = (ratio == 1) | _rounds_up(how.rounding, ratio)
        return np.array([0, 1]), np.stack([~right, right], 1).astype(np.float64)
    reach = {"linear": 1, "cubic": 2}[how.mode]
    shrunk = min(scale, 1.0) if how.antialias else 1.0
    first = floor(-reach / shrunk) + 1
    offsets = np.arange(first, 2 - first)
    distance = np.abs(offsets - ratio[:, None]) * shrunk
    weights = np.clip(1 - distance, 0, 1) if how.mode == "linear" else _cubic(distance, how.cubic_coefficient)
    return offsets, weights / weights.sum(1, keepdims=True) if how.antialias else weights


def _rounds_up(rounding: str, ratio: Floats) -> NDArray[np.bool_]:
    below: dict[str, Any] = {
        "round_prefer_floor": ratio > 0.5, "round_prefer_ceil": ratio >= 0.5, "floor": ratio > 1, "ceil": ratio > 0,
    }  # fmt: skip
    return np.asarray(below[rounding])


def _cubic(d: Floats, a: float) -> Floats:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


__all__ = ["COORDINATES", "MODES", "ROUNDINGS", "Interpolation", "Taps", "taps"]
