"""The comparison of a kernel's result with an expectation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def largest_error(result: Array, expected: Array) -> int:
    """The largest distance in floats between `result` and `expected`, of one float type.

    A NaN where there should be none, or none where there should be, and a zero of the wrong sign are 2**64 away.
    """
    distance = np.abs(_position(result) - _position(expected))
    nan, other = np.isnan(expected), np.isnan(result)
    distance[nan & other] = 0
    zero_signs = (result == 0) & (expected == 0) & (np.signbit(result) != np.signbit(expected))
    distance[(nan != other) | zero_signs] = 2**64
    return int(distance.max(initial=0))


def assert_agrees(result: Array, expected: Array, ulps: int = 0, absolute: Array | None = None) -> None:
    """That `result` misses `expected` by at most `ulps` floats, or by at most `absolute` where that is given.

    Without tolerance floats have the same bits, except that any NaN is as good as another; the same holds for what is
    not finite under an absolute tolerance.
    """
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    if result.dtype.name not in ("bfloat16", "float16", "float32", "float64"):
        np.testing.assert_array_equal(result, expected)
    elif absolute is None:
        error = largest_error(result, expected)
        assert error <= ulps, f"{error} ulps, {ulps} accepted: {_worst(result, expected)}"
    else:
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(result[~finite], expected[~finite])
        error = np.abs(result[finite].astype(np.float64) - expected[finite].astype(np.float64))
        assert (error <= absolute[finite]).all(), f"an error of {error.max():g}: {_worst(result, expected)}"


def _position(floats: Array) -> Array:
    """The number of floats between 0 and each float, negative below 0."""
    integer = {2: np.int16, 4: np.int32, 8: np.int64}[floats.dtype.itemsize]
    bits = np.ascontiguousarray(floats).view(integer)
    # Distances of float64 do not fit into 64 bits.
    return np.where(bits < 0, -(bits & np.iinfo(integer).max), bits).astype(object)


def _worst(result: Array, expected: Array) -> str:
    """The first elements that differ."""
    differ = (result != expected) & ~(np.isnan(result) & np.isnan(expected))
    differ |= np.signbit(result) != np.signbit(expected)
    return ", ".join(f"[{n}] {result.flat[n]!r} for {expected.flat[n]!r}" for n in np.flatnonzero(differ)[:4])
