"""Floats that functions stumble over, and random ones of every magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_F32 = np.finfo(np.float32)

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


def any_floats(count: int, seed: int) -> Array:
    """Random bit patterns: every exponent is as likely as every other. NaNs are quiet."""
    bits = np.random.default_rng(seed).integers(0, 2**32, count, np.uint32)
    floats = bits.view(np.float32).copy()
    floats[np.isnan(floats)] = np.nan
    return floats


def reals(seed: int, scale: float = 8.0) -> Array:
    """The specials, floats of every magnitude, and many near zero."""
    near = np.random.default_rng(seed).standard_normal(1024).astype(np.float32) * np.float32(scale)
    return np.concatenate([SPECIALS, any_floats(1024, seed), near])


def pairs(seed: int) -> tuple[Array, Array]:
    """Every special with every other, and random pairs."""
    first, second = (grid.ravel() for grid in np.meshgrid(SPECIALS, SPECIALS))
    return np.concatenate([first, reals(seed)]), np.concatenate([second, np.roll(reals(seed + 1), 7)])


def triples(seed: int) -> tuple[Array, Array, Array]:
    """Every pair of `pairs` with sums that cancel, ties and randoms as the third."""
    x, y = pairs(seed)
    with np.errstate(all="ignore"):
        near = np.nextafter(-(x * y), np.float32(0))
    z = np.where(np.arange(x.size) % 2 == 0, near, np.resize(reals(seed + 2), x.size)).astype(np.float32)
    return x, y, z
