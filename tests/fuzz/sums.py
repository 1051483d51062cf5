"""What is known of a sum beside its value: the magnitudes of its terms, and which of them are products that vanish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Multiply = Callable[[Array, Array], Any]


_SHRUNK = 2.0**-256
"""By what the factors of products are multiplied, so that no sum of them is infinite that is near the end of a type."""


@dataclass(frozen=True)
class Terms:
    """The terms of each element of a result.

    magnitude: the magnitudes of the finite ones, added up; it may be infinite
    above, below: the same of those above and of those below 0, as `_SHRUNK**2` parts
    special: what the terms that are infinite or NaN add up to, 0 without any
    positive, negative: how many terms are products of numbers other than 0, with these signs
    alike: of how many terms each is equal to, itself included, the sum; 0 where that is not known
    is_scaled: whether the sum is that of multiples of the terms, which may be what is added up
    """

    count: int
    magnitude: Any
    above: Any
    below: Any
    special: Any
    positive: Any = 0
    negative: Any = 0
    alike: Any = 0
    is_scaled: bool = False

    @property
    def roundings(self) -> Any:
        """How many roundings of the magnitude the sum may be off by: the root of their number if they are independent
        of one another (Higham and Mary, theorem 2.4). Equal terms that are added to sums of one binade are rounded to
        the same side, so that their errors add up."""
        return np.sqrt(np.maximum(self.count, self.alike))

    @property
    def largest(self) -> Any:
        """The largest magnitude of a partial sum of the finite ones in any order."""
        return np.maximum(self.above, self.below) / _SHRUNK**2

    def error(self, unit: float) -> Any:
        """A part of the magnitude, also of one beyond float64."""
        with np.errstate(all="ignore"):
            beyond = (self.above + self.below) * unit / _SHRUNK**2
            return np.where(np.isfinite(self.magnitude), self.magnitude * unit, beyond)

    def negated(self) -> Terms:
        """Those of the other sign."""
        return replace(self, above=self.below, below=self.above, special=-self.special)

    def scaled(self, by: float) -> Terms:
        """Those that are the larger by a factor above 0, and may be added up before they are scaled, or after."""
        above, below = self.above * by, self.below * by
        return replace(self, magnitude=self.magnitude * by, above=above, below=below, is_scaled=True)

    def plus(self, other: Terms) -> Terms:
        """The terms of both."""
        return Terms(
            self.count + other.count,
            self.magnitude + other.magnitude,
            self.above + other.above,
            self.below + other.below,
            self.special + other.special,
            self.positive + other.positive,
            self.negative + other.negative,
            self.alike + other.alike,
            self.is_scaled or other.is_scaled,
        )

    @property
    def value(self) -> Any:
        """The sum, as exact as float64 is, also where some partial sum is beyond it."""
        return np.where(self.special == 0, (self.above - self.below) / _SHRUNK**2, self.special)

    def ends_near(self, end: float, error: float) -> Any:
        """Where the sum of the finite terms is beyond a type that ends there, or not, by less than an error for each
        term, relative to the end."""
        ratio = np.abs(self.above - self.below) / (end * _SHRUNK**2)
        return (np.abs(ratio - 1) < (self.count + 1) * error) & (self.special == 0)

    def infinities(self, end: float) -> tuple[Any, Any]:
        """Where a partial sum that is beyond a type that ends there, in some order of additions, may make of the sum
        what it is not in others: one that is above the end, and one that is below.

        Terms of one sign are infinite in every order if in one. So is a sum beyond the type, unless its terms of the
        other sign are beyond the type by themselves: what is infinite stays infinite.
        """
        rounded = end * (1 - min(0.5, self.count * float(np.finfo(np.float32).eps)))
        up, down = (np.where(np.isnan(self.special), False, x > rounded * _SHRUNK**2) for x in (self.above, self.below))
        if self.is_scaled:
            return up, down
        return up & ~(self.value > end), down & ~(self.value < -end)


def finite(x: Array) -> Array:
    """Magnitudes, those that are not finite left away."""
    return np.where(np.isfinite(x), np.abs(x.astype(np.float64)), 0)


def terms_of(x: Array, axes: tuple[int, ...], count: int) -> Terms:
    """Of the sum along axes, which are kept."""
    wide = x.astype(np.float64)
    sides = (wide, np.where(wide > 0, wide, 0) * _SHRUNK**2, np.where(wide < 0, -wide, 0) * _SHRUNK**2)
    magnitude, above, below = (finite(side).sum(axis=axes, keepdims=True) for side in sides)
    special = np.where(np.isfinite(wide), 0, wide).sum(axis=axes, keepdims=True)
    return Terms(count, magnitude, above, below, special, alike=_alike(wide, axes))


def _alike(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum of how many terms along axes, which are kept, each term is equal to; 0 is added without an error."""
    axes = tuple(axis % x.ndim for axis in axes)
    kept = [1 if axis in axes else extent for axis, extent in enumerate(x.shape)]
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    rows = np.sort(x.transpose([*rest, *axes]).reshape(prod(kept), prod(x.shape[axis] for axis in axes)), axis=1)
    first = np.ones(rows.shape, np.bool_)
    first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    lengths = np.bincount(np.cumsum(first.ravel()) - 1) if rows.size else np.zeros(0, np.int64)
    sizes = np.repeat(lengths, lengths).reshape(rows.shape)
    return np.where(rows == 0, 1, sizes).sum(axis=1).reshape(kept)


def terms_of_products(a: Array, b: Array, multiply: Multiply, count: int) -> Terms:
    """Of a sum of products; `multiply` gives it for two arrays of float64."""

    def paired(a: Array, b: Array) -> tuple[Any, Any]:
        (up, down), (high, low) = ((np.where(x > 0, x, 0), np.where(x < 0, -x, 0)) for x in (a, b))
        return multiply(up, high) + multiply(down, low), multiply(up, low) + multiply(down, high)

    first, second = (np.where(np.isfinite(x), x.astype(np.float64), 0) for x in (a, b))
    special = multiply(*(np.where(np.isfinite(x), np.sign(x), x).astype(np.float64) for x in (a, b)))
    return Terms(
        count,
        multiply(np.abs(first), np.abs(second)),
        *paired(first * _SHRUNK, second * _SHRUNK),
        np.where(np.isfinite(special), 0, special),
        *paired(np.sign(first), np.sign(second)),
    )


__all__ = ["Terms", "finite", "terms_of", "terms_of_products"]
