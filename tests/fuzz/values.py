"""Elements of drawn tensors: ordinary ones, ones that round or tie, and extreme ones."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DTYPES = tuple(
    np.dtype(t)
    for t in (
        np.float16, np.float32, np.float64, np.bool_, np.int8, np.int16, np.int32, np.int64,
        np.uint8, np.uint16, np.uint32, np.uint64,
    )
)  # fmt: skip
"""Every element type that the frontend takes."""
FLOATS = tuple(d for d in DTYPES if d.kind == "f")
INTEGERS = tuple(d for d in DTYPES if d.kind in "iu")
KINDS = ("plain", "plain", "steps", "extreme")


def draw_array(rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int], kind: str) -> Array:
    """An array of elements of one of `KINDS`."""
    count = prod(shape)
    if dtype.kind == "b":
        return (rng.random(count) < 0.5).reshape(tuple(shape))
    if kind == "steps":
        values = rng.integers(-6, 7, count) / (2 if dtype.kind == "f" else 1)
    elif dtype.kind == "f":
        values = rng.standard_normal(count) * rng.choice([0.1, 1, 1, 10])
    else:
        values = rng.integers(-20, 21, count)
    array = (np.abs(values) if dtype.kind == "u" else np.asarray(values)).astype(dtype)
    if kind == "extreme" and count:
        ends = extremes(dtype)
        chosen = rng.random(count) < rng.choice([0.1, 0.5, 1])
        array = np.where(chosen, rng.choice(ends, count), array).astype(dtype)
    return array.reshape(tuple(shape))


def extremes(dtype: np.dtype[Any]) -> Array:
    """Zeros, infinities, NaN, subnormal numbers, the ends of the type, ones and halves."""
    if dtype.kind == "i":
        ends = np.iinfo(dtype)
        return np.array([0, 1, -1, 2, ends.max, ends.min, ends.max - 1, ends.min + 1], dtype)
    if dtype.kind == "u":
        most = int(np.iinfo(dtype).max)
        return np.array([0, 1, 2, most, most - 1, most // 2, most // 2 + 1], dtype)
    info = np.finfo(dtype)
    ends = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        info.smallest_subnormal,
        -info.smallest_subnormal,
        info.tiny,
        -info.tiny,
    ]
    ordinary = [info.max, info.min, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 1 + info.eps, 1e4, -1e4]
    return np.array([*ends, *ordinary], dtype)


__all__ = ["DTYPES", "FLOATS", "INTEGERS", "KINDS", "Array", "draw_array", "extremes"]
