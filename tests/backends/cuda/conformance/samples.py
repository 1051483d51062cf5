"""Floats that functions stumble over, and random ones of every magnitude."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_F32, _F64 = np.finfo(np.float32), np.finfo(np.float64)

_POSITIVE = (
    *(0.0, float("inf"), float("nan"), 1.0, 0.5, 2.0, 3.0),
    *(float(_F32.smallest_subnormal), float(_F32.tiny) - float(_F32.smallest_subnormal), float(_F32.tiny)),
    float(_F32.max),
    *(1.5, 2.5, 3.5, 2.0**22 + 0.5, 2.0**23 - 0.5, 2.0**23 + 1.0, 2.0**24 + 2.0),  # ties of roundings, and no ties
    *(float(np.nextafter(np.float32(1), np.float32(0))), float(np.nextafter(np.float32(1), np.float32(2)))),
    *(88.72283, 88.722855, 87.33655, 103.97208, 104.0),  # where exp overflows, becomes subnormal, and 0
    *(1.5707964, 3.1415927, 1e5, 1e22),  # where reducing an argument by pi/2 is hard
)
SPECIALS: Array = np.array([*_POSITIVE, *(-x for x in _POSITIVE)], np.float32)
"""Zeros, infinities, NaN, subnormals, extremes, ties, the borders of exp, of both signs."""


_POSITIVE_DOUBLES = (
    *(float(_F64.smallest_subnormal), float(_F64.tiny), float(_F64.max)),
    *(float(np.nextafter(1, 0)), float(np.nextafter(1, 2))),
    *(2.0**51 + 0.5, 2.0**52 - 0.5, 2.0**52 + 1.0, 2.0**53 + 2.0),  # ties of roundings, and no ties
    *(709.78, 709.79, 708.39, 744.44, 745.14),  # where exp overflows, becomes subnormal, and 0
    *(math.pi / 2, math.pi, 1e300),  # where reducing an argument by pi/2 is hard
)
SPECIAL_DOUBLES: Array = np.array([*SPECIALS.astype(float), *_POSITIVE_DOUBLES, *(-x for x in _POSITIVE_DOUBLES)])
"""These as doubles, and those of doubles."""


def any_floats(count: int, seed: int, dtype: type[np.generic] = np.float32) -> Array:
    """Random bit patterns: every exponent is as likely as every other. NaNs are quiet."""
    bits = np.random.default_rng(seed).integers(0, 2**32, count * np.dtype(dtype).itemsize // 4, np.uint32)
    floats = bits.view(dtype).copy()
    floats[np.isnan(floats)] = np.nan
    return floats


def reals(seed: int, spread: float = 8.0, dtype: type[np.generic] = np.float32) -> Array:
    """The specials, floats of every magnitude, and many of a standard deviation; of doubles also of ten times that."""
    specials = SPECIALS if dtype == np.float32 else SPECIAL_DOUBLES
    near = np.random.default_rng(seed).standard_normal(1024) * spread
    far = [] if dtype == np.float32 else [near[::2] * 10]
    return np.concatenate([specials, any_floats(1024, seed, dtype), near.astype(dtype), *far])


def pairs(seed: int, spread: float = 8.0, dtype: type[np.generic] = np.float32) -> tuple[Array, Array]:
    """Every special with every other, and random pairs."""
    specials = SPECIALS if dtype == np.float32 else SPECIAL_DOUBLES
    first, second = (grid.ravel() for grid in np.meshgrid(specials, specials))
    x, y = (reals(each, spread, dtype) for each in (seed, seed + 1))
    return np.concatenate([first, x]), np.concatenate([second, np.roll(y, 7)])


def triples(seed: int, spread: float = 8.0, dtype: type[np.generic] = np.float32) -> tuple[Array, Array, Array]:
    """Every pair of `pairs` with sums that cancel, ties and randoms as the third."""
    x, y = pairs(seed, spread, dtype)
    with np.errstate(all="ignore"):
        near = np.nextafter(-(x * y), np.zeros(1, dtype))
    z = np.where(np.arange(x.size) % 2 == 0, near, np.resize(reals(seed + 2, spread, dtype), x.size))
    return x, y, z.astype(dtype)


def operands(count: int, seed: int, spread: float, dtype: type[np.generic]) -> tuple[Array, ...]:
    """Samples of a function of so many operands."""
    if count == 1:
        return (reals(seed, spread, dtype),)
    return (pairs if count == 2 else triples)(seed, spread, dtype)
