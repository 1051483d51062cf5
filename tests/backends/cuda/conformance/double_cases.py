"""What becomes of doubles in 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.case import Case, elementwise
from tests.backends.cuda.conformance.samples import SPECIAL_DOUBLES

Array = NDArray[Any]

_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
_FINITE_HALVES = _HALVES[np.isfinite(_HALVES)][::5]
_BFLOATS = (np.random.default_rng(40).integers(0x0080, 0x7F00, 4096).astype(np.uint32) << 16).view(np.float32)


def _beside_ties(values: Array, gap: Array) -> Array:
    """What lies halfway to the next value, and so little beside it that a float would not tell."""
    ties = values + gap / 2
    return np.concatenate([SPECIAL_DOUBLES, values, ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf)])


_TO_HALF = _beside_ties(_FINITE_HALVES, np.spacing(_FINITE_HALVES.astype(np.float16)).astype(np.float64))
_TO_BFLOAT16 = _beside_ties(_BFLOATS.astype(np.float64), np.spacing(_BFLOATS).astype(np.float64) * 2**16)


def _bfloat16_bits(x: Array) -> Array:
    """The bits of `x` rounded once to 8 bits of mantissa, as a float; NaN is the quiet one."""
    with np.errstate(all="ignore"):
        fraction, exponent = np.frexp(x)
        kept = 8 - np.maximum(0, -125 - exponent)
        rounded = np.ldexp(np.rint(np.ldexp(fraction, kept)), exponent - kept)
        return np.where(np.isfinite(x), rounded, x).astype(np.float32)


DOUBLE_CASES: dict[str, Case] = {
    # Which odd float it is shows only in what is made of it; here it is told from one that is rounded.
    "treadle_double_to_odd": elementwise(
        "(double)treadle_double_to_odd(1 + x) - 1",
        lambda x: np.where(x == 0, 0, 2.0**-23) * np.ones(x.shape),
        np.array([0.0, 2.0**-52, 2.0**-24, 2.0**-23 - 2.0**-52, 2.0**-23]),
        result=np.float64,
    ),
    "treadle_double_to_half": elementwise(
        "treadle_double_to_half(x)", lambda x: x.astype(np.float16), _TO_HALF, result=np.float16
    ),
    "treadle_double_to_bfloat16": elementwise(
        "__uint_as_float((unsigned)treadle_double_to_bfloat16(x).bits << 16)", _bfloat16_bits, _TO_BFLOAT16
    ),
}
"""By function."""
