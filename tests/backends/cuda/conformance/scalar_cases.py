"""Whole numbers and comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.case import Case, elementwise
from tests.backends.cuda.conformance.samples import pairs

Array = NDArray[Any]


_WHOLE = np.array([*range(-9, 10), 2**31 - 1, -(2**31) + 1], np.int32)
_A, _B = (grid.ravel() for grid in np.meshgrid(_WHOLE, _WHOLE))
_DIVIDEND = np.where(_A == 9, -(2**63), _A.astype(np.int64) * 3)  # beyond 32 bits, too
_FLOATS = np.array([0, -0.0, 1.5, -1.5, 2**31, -(2**31), 2**31 - 128, 3e9, -3e9, np.inf, -np.inf, np.nan], np.float32)


def _towards_zero(x: Array, y: Array) -> Array:
    return (x - np.fmod(x, y)) // y


def _nearest(x: Array) -> Array:
    return np.clip(np.trunc(np.nan_to_num(x.astype(np.float64))), -(2**31), 2**31 - 1)


SCALAR_CASES: dict[str, Case] = {
    "treadle_div_integer": elementwise(
        "treadle_div_integer(x, (long long)y)", _towards_zero, _DIVIDEND, _B, result=np.int64
    ),
    "treadle_rem_integer": elementwise("treadle_rem_integer(x, (long long)y)", np.fmod, _DIVIDEND, _B, result=np.int64),
    "treadle_floordiv_integer": elementwise(
        "treadle_floordiv_integer(x, (long long)y)", np.floor_divide, _DIVIDEND, _B, result=np.int64
    ),
    "treadle_ceildiv_integer": elementwise(
        "treadle_ceildiv_integer(x, (long long)y)", lambda x, y: x // y + (x % y != 0), _DIVIDEND, _B, result=np.int64
    ),
    "treadle_to_integer": elementwise("treadle_to_integer<int>(x)", _nearest, _FLOATS, result=np.int32),
    "treadle_min_integer": elementwise("treadle_min_integer(x, y)", np.minimum, _A, _B, result=np.int32),
    "treadle_max_integer": elementwise("treadle_max_integer(x, y)", np.maximum, _A, _B, result=np.int32),
    "treadle_unordered": elementwise(
        "treadle_unordered(x, y)", lambda x, y: np.isnan(x) | np.isnan(y), *pairs(25), result=np.int32
    ),
    "treadle_differ": elementwise("treadle_differ(x, y)", lambda x, y: (x < y) | (x > y), *pairs(26), result=np.int32),
}
"""By function."""
