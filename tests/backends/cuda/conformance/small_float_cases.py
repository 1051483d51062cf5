"""Conversions of floats of 8 and 4 bits: every byte, and every tie between two of them, against `ml_dtypes`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.case import Case, elementwise
from tests.backends.cuda.conformance.samples import reals

Array = NDArray[Any]

_TYPES: dict[str, np.dtype[Any]] = {
    "f4E2M1FN": np.dtype(ml_dtypes.float4_e2m1fn),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
_POWERS = np.dtype(ml_dtypes.float8_e8m0fnu)


def _bytes(dtype: np.dtype[Any]) -> Array:
    return np.arange(16 if dtype == _TYPES["f4E2M1FN"] else 256, dtype=np.int32)


def _numbers(x: Array, dtype: np.dtype[Any]) -> Array:
    return x.astype(np.uint8).view(dtype).astype(np.float32)


def _rounded(x: Array, dtype: np.dtype[Any]) -> Array:
    return x.astype(dtype).view(np.uint8).astype(np.int32)


def _between(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Neighbours among the positive numbers of a type."""
    values = _numbers(_bytes(dtype), dtype)
    positive = np.unique(np.abs(values[np.isfinite(values) & (values >= 0)]))  # of two zeros the positive one
    return positive[:-1], positive[1:]


def _hard(dtype: np.dtype[Any]) -> Array:
    """Numbers, ties and their neighbours among floats, and what is too large; not NaN, whose sign is free."""
    low, high = _between(dtype)
    ties = (low + high) / 2
    near = np.concatenate([low, ties, *(np.nextafter(ties, np.float32(way)) for way in (np.inf, -np.inf))])
    large = high[-1] + (high[-1] - low[-1]) * np.array([0.25, 0.5, 0.75, 4], np.float32)
    some = reals(33)
    return np.concatenate([near, -near, large, -large, some[~np.isnan(some)]]).astype(np.float32)


def _of_doubles(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Doubles so near to a tie that a float in between would be one, and the byte on their side of it."""
    low, high = (each.astype(np.float64) for each in _between(dtype))
    ties = (low + high) / 2
    below, above = (np.nextafter(ties, way) for way in (-np.inf, np.inf))
    return np.concatenate([below, above]), _rounded(np.concatenate([low, high]).astype(np.float32), dtype)


def _cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for name, dtype in _TYPES.items():
        call, hard = f"treadle_{name}_to_float((unsigned char)x)", _hard(dtype)
        cases[f"treadle_{name}_to_float"] = elementwise(call, lambda x, dtype=dtype: _numbers(x, dtype), _bytes(dtype))
        cases[f"treadle_float_to_{name}"] = elementwise(
            f"treadle_float_to_{name}(x)", lambda x, dtype=dtype: _rounded(x, dtype), hard, result=np.int32
        )
        doubles, expected = _of_doubles(dtype)
        cases[f"treadle_double_to_{name}"] = elementwise(
            f"treadle_double_to_{name}(x)", lambda _, expected=expected: expected, doubles, result=np.int32
        )
    cases["treadle_f8E8M0FNU_to_float"] = elementwise(
        "treadle_f8E8M0FNU_to_float((unsigned char)x)", lambda x: _numbers(x, _POWERS), _bytes(_POWERS)
    )
    return cases


SMALL_FLOAT_CASES = _cases()
"""By function."""
