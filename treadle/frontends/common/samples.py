"""Positions in floats that are known for every value of the symbols, and where Resize reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.frontends.common.extent import Extent, Symbolic, of_expression
from treadle.index.algebra import MOST_POINTS
from treadle.index.expr import Atom, Expr, Var, floordiv, var

# Where ONNX's Resize reads along one dimension: for each position of the result some positions and their weights.
#
# Source: the specification of Resize, and Keys, "Cubic convolution interpolation for digital image processing", IEEE
# Transactions on Acoustics, Speech, and Signal Processing 29(6), 1981.

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


# Shape arithmetic in floats: numbers that are known for every value of the symbols.
#
# A symbol has finitely many values. A number that is computed from extents by float arithmetic is the array of what
# NumPy computes, in the type of the tensor, at each of them. Cast back to integers, it is an extent again if some
# quotient `(a * symbol + b) // d` is the same number at every value.

Table = NDArray[Any]
_LARGEST_DIVISOR = 64
_LARGEST = 1 << 53

_UNARY: Mapping[str, Callable[[Table], Table]] = {
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt,
}  # fmt: skip
_BINARY: Mapping[str, Callable[[Table, Table], Table]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Sampled:
    """A number, `values` with an axis for each variable, from its lowest to its highest value."""

    variables: tuple[Var, ...]
    values: Table

    def at(self, variables: Sequence[Var]) -> Table:
        """The values with axes for these variables, of which it has some in this order."""
        shape = [_count(v) if v in self.variables else 1 for v in variables]
        return self.values.reshape(shape)


Number = Sampled | np.generic


def sampled(number: Symbolic, dtype: np.dtype[Any]) -> Number | None:
    """An extent or an integer in a type; None where there are too many values to try."""
    if not isinstance(number, Extent):
        return dtype.type(number)
    variables = _ordered(number.expression.vars())
    if not _are_few(variables):
        return None
    counts = [_count(v) for v in variables]
    points = np.indices(counts)
    at = {v.key: points[n] + (v.lo or 0) for n, v in enumerate(variables)}
    return Sampled(variables, np.asarray(number.expression.evaluate(at)).astype(dtype))  # pyright: ignore


def of_kind(kind: str, operands: Sequence[Number]) -> Number | None:
    """What an operator of one or two numbers gives; None for others than those of shape arithmetic."""
    rule = _UNARY.get(kind) if len(operands) == 1 else _BINARY.get(kind)
    variables = _ordered({v for each in operands if isinstance(each, Sampled) for v in each.variables})
    if rule is None or not _are_few(variables):
        return None
    tables = [each.at(variables) if isinstance(each, Sampled) else np.asarray(each) for each in operands]
    with np.errstate(all="ignore"):
        return _settled(variables, np.asarray(rule(*tables)))


def whole(number: Number) -> Symbolic | None:
    """The integer or the extent that a number is, cut off towards zero; None where it is no quotient of one symbol."""
    values = np.trunc(number.values if isinstance(number, Sampled) else np.asarray(number)).astype(np.float64)
    if not np.isfinite(values).all() or np.abs(values).max() >= _LARGEST:
        return None
    if not isinstance(number, Sampled):
        return int(values)
    settled = _settled(number.variables, values)
    if not isinstance(settled, Sampled):
        return int(settled)
    found = _quotient(number.variables[0], values.astype(np.int64)) if len(number.variables) == 1 else None
    return None if found is None else of_expression(found)


def is_whole(number: Number) -> bool:
    """Whether it is an integer at every value."""
    values = number.values if isinstance(number, Sampled) else np.asarray(number)
    return bool(np.equal(np.trunc(values), values).all())


def _settled(variables: tuple[Var, ...], values: Table) -> Number:
    """One number where it is the same at every value."""
    first = values.reshape(-1)[0]
    return first if bool(np.equal(values, first).all()) else Sampled(variables, values)


def _quotient(v: Var, values: NDArray[np.int64]) -> Expr | None:
    """`(a * v + b) // d` of the smallest d that gives the values; what there is of it is checked at each."""
    lowest = v.lo or 0
    places = np.arange(lowest, lowest + len(values))
    rise = int(values[-1] - values[0])
    for divisor in range(1, _LARGEST_DIVISOR + 1):
        nearest = rise * divisor // (len(values) - 1)
        for factor in range(nearest - 1, nearest + 3):
            gap = values * divisor - places * factor
            least, most = int(gap.max()), int(gap.min()) + divisor - 1
            if least <= most:
                offset = min(max(0, least), most)
                return floordiv(var(v.key, v.lo, v.hi) * factor + offset, divisor)
    return None


def _ordered(variables: Sequence[Var] | set[Var] | tuple[Var, ...]) -> tuple[Var, ...]:
    return tuple(sorted(variables, key=_serial))


def _serial(atom: Atom) -> int:
    return atom.serial


def _are_few(variables: Sequence[Var]) -> bool:
    known = all(v.lo is not None and v.hi is not None for v in variables)
    return known and prod(map(_count, variables)) <= MOST_POINTS


def _count(v: Var) -> int:
    assert v.lo is not None and v.hi is not None
    return v.hi - v.lo + 1
