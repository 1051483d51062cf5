"""Which element types hold all values of which others."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from treadle.dialects.graph.dtypes import (
    STORED_TYPES,
    element_type,
    integer_dtype_limits,
    is_float_dtype,
    is_integer_dtype,
    numpy_dtype,
    represents,
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [BFLOAT16, *map(np.dtype, (np.float16, np.float32, np.float64))]
_SIGNED = (np.int8, np.int16, np.int32, np.int64)
_UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)
STORED = [numpy_dtype(type) for type in STORED_TYPES]
DTYPES = [*FLOATS, *map(np.dtype, (np.bool_, *_SIGNED, *_UNSIGNED)), *STORED]


def hard_values(dtype: np.dtype[Any]) -> NDArray[Any]:
    """All values of up to 16 bits; of wider types those with the longest digits and the extreme exponents."""
    if dtype == np.bool_:
        return np.array([False, True])
    if is_integer_dtype(dtype) and dtype in STORED:
        lowest, highest = integer_dtype_limits(dtype)
        return np.arange(lowest, highest + 1).astype(dtype)
    if dtype.itemsize <= 2:
        bits = np.arange(1 << 8 * dtype.itemsize, dtype=np.uint32).astype(f"u{dtype.itemsize}")
        return bits.view(dtype)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        low = [int(ends.min), int(ends.min) + 1, *([-1] if ends.min < 0 else [])]
        return np.array([*low, int(ends.max), int(ends.max) - 1, 0, 65505], dtype)
    ends = np.finfo(dtype)
    return np.array([ends.max, -ends.max, ends.tiny, ends.smallest_subnormal, 1 + ends.eps, 0.5, np.inf, np.nan], dtype)


def same(a: Any, b: Any) -> bool:
    """Whether two scalars are one number; Python compares integers with floats exactly."""
    x, y = (float(v) if is_float_dtype(np.dtype(v.dtype)) else int(v) for v in (a, b))
    return x == y or (math.isnan(x) and math.isnan(y))


@pytest.mark.parametrize("wide", DTYPES, ids=str)
@pytest.mark.parametrize("narrow", DTYPES, ids=str)
def test_against_numpy(narrow: np.dtype[Any], wide: np.dtype[Any]) -> None:
    if wide in STORED:
        assert represents(element_type(wide), element_type(narrow)) == (wide == narrow)
        return
    values = hard_values(narrow)
    with np.errstate(all="ignore"):
        cast = values.astype(wide)
    kept = wide != np.bool_ or narrow == np.bool_
    kept = kept and not (is_float_dtype(narrow) and wide not in FLOATS)
    kept = kept and all(same(a, b) for a, b in zip(values, cast, strict=True))
    assert represents(element_type(wide), element_type(narrow)) == kept
