"""Conversions between float, half, bfloat16 and tf32: every small value, and every tie on the way there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.case import Case, elementwise
from tests.backends.cuda.conformance.samples import reals

Array = NDArray[Any]

_HALVES = np.arange(1 << 16, dtype=np.uint16)
_QUIET_HALVES = np.where(np.isnan(_HALVES.view(np.float16)), 0x7FFF, _HALVES).astype(np.uint16).view(np.float16)


def _between(values: Array, step: int) -> Array:
    """The floats halfway between neighbours in `values` and those beside them; `step` is the last bit that is kept."""
    bits = values.astype(np.float32).view(np.uint32)
    return np.concatenate([bits + np.uint32(step // 2 + beside) for beside in (-1, 0, 1)]).view(np.float32)


def _rounded_bits(x: Array, kept: int, away: bool = False) -> Array:
    """The bits of `x` rounded to its first `kept` bits, ties to even or away from zero; NaN is the quiet one."""
    bits, dropped = x.view(np.uint32).astype(np.uint64), 32 - kept
    half = np.uint64(1 << (dropped - 1))
    odd = bits >> np.uint64(dropped) & np.uint64(1)
    rounded = (bits + (half if away else half - np.uint64(1) + odd)) >> np.uint64(dropped) << np.uint64(dropped)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.astype(np.uint32).view(np.float32))


_SOME = np.random.default_rng(0).standard_normal(2048).astype(np.float32)
_NORMAL_HALVES = _QUIET_HALVES[(np.abs(_QUIET_HALVES) >= 2**-14) & np.isfinite(_QUIET_HALVES)][::7]
_TO_HALF = np.concatenate(
    [
        reals(30),
        _between(_NORMAL_HALVES, 1 << 13),
        np.arange(-4096, 4096, dtype=np.float32) * np.float32(2.0**-26),  # subnormal halves and their quarters
        np.array([65504, 65519.996, 65520, 65536], np.float32),
    ]
)
_TO_BFLOAT16 = np.concatenate([reals(31), _between(_rounded_bits(_SOME, 16), 1 << 16)])
_TO_TF32 = np.concatenate([reals(32), _between(_rounded_bits(_SOME, 19), 1 << 13)])

_BFLOATS = np.where(np.isnan((_HALVES.astype(np.uint32) << 16).view(np.float32)), 0x7FC0, _HALVES).astype(np.uint16)

CONVERSION_CASES: dict[str, Case] = {
    "treadle_half_to_float": elementwise(
        "treadle_half_to_float(x)", lambda x: x.astype(np.float32), _QUIET_HALVES, sass="HADD2.F32"
    ),
    "treadle_float_to_half": elementwise(
        "treadle_float_to_half(x)", lambda x: x.astype(np.float16), _TO_HALF, result=np.float16, sass="F2FP"
    ),
    "treadle_bfloat16_to_float": elementwise(
        "treadle_bfloat16_to_float(treadle_bfloat16{x})",
        lambda x: (x.astype(np.uint32) << 16).view(np.float32),
        _BFLOATS,
    ),
    # The result is read back by the shift that widens every bfloat16, so that any NaN is accepted.
    "treadle_float_to_bfloat16": elementwise(
        "__uint_as_float((unsigned)treadle_float_to_bfloat16(x).bits << 16)",
        lambda x: _rounded_bits(x, 16),
        _TO_BFLOAT16,
        sass="F2F.BF16",
    ),
    # Subnormal numbers are 0, before and after.
    "treadle_exp2_approx": elementwise(
        "treadle_exp2_approx(x)",
        lambda x: np.where(np.exp2(x) < 2.0**-126, 0, np.exp2(x)),
        np.concatenate(
            [reals(41), np.array([0, -0.0, 1e-40, -126, -126.5, -149, 127, 128, np.inf, -np.inf, np.nan], np.float32)]
        ),
        ulps=3,
        sass="MUFU.EX2",
    ),
    # Only the first 19 bits are promised, since the tensor cores read no more.
    "treadle_float_to_tf32": elementwise(
        "__uint_as_float(__float_as_uint(treadle_float_to_tf32(x)) & 0xffffe000u)",
        lambda x: _rounded_bits(x, 19, away=True),
        _TO_TF32,
    ),
    "treadle_round_tf32": elementwise(
        "__uint_as_float(__float_as_uint(treadle_round_tf32(treadle_vec<float, 2>{{1.0f, x}}).v[1]) & 0xffffe000u)",
        lambda x: _rounded_bits(x, 19, away=True),
        _TO_TF32,
    ),
}
"""By function."""
