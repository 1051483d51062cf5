"""Scalar mathematics and whole numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.accuracy import MAX_ULPS
from tests.backends.cuda.conformance.case import Case, elementwise
from tests.backends.cuda.conformance.samples import pairs, reals, triples

Array = NDArray[Any]


def larger(x: Array, y: Array) -> Array:
    """The maximum without NaN, +0 being larger than -0."""
    return np.where((x > y) | ((x == y) & np.signbit(y)), x, y)


def _fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z rounded once: float64 holds the product; the sum is rounded to odd, then to float32.

    Source: Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008.
    """
    product, addend = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
    total = product + addend
    part = total - product
    rest = (product - (total - part)) + (addend - part)
    even = total.view(np.int64) % 2 == 0
    towards = np.nextafter(total, np.where(rest > 0, np.inf, -np.inf))
    return np.where(np.isfinite(total) & (rest != 0) & even, towards, total)


_FUNCTIONS: dict[str, tuple[Callable[..., Array], tuple[Array, ...]]] = {
    "exp": (np.exp, (reals(1, 40),)),
    "exp2": (np.exp2, (reals(27, 40),)),
    "expm1": (np.expm1, (reals(2),)),
    "log": (np.log, (reals(3),)),
    "log1p": (np.log1p, (reals(4, 0.5),)),
    "sqrt": (np.sqrt, (reals(5),)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (reals(6),)),
    "sin": (np.sin, (reals(7, 100),)),
    "cos": (np.cos, (reals(8, 100),)),
    "tan": (np.tan, (reals(9, 100),)),
    "tanh": (np.tanh, (reals(10, 2),)),
    "erf": (np.vectorize(math.erf), (reals(11, 2),)),
    "pow": (np.power, pairs(12)),
    "mod": (np.fmod, pairs(13)),
    "fma": (_fma, triples(14)),
    "abs": (np.abs, (reals(15),)),
    "floor": (np.floor, (reals(16),)),
    "ceil": (np.ceil, (reals(17),)),
    "trunc": (np.trunc, (reals(18),)),
    "roundeven": (np.rint, (reals(19),)),
    "copysign": (np.copysign, pairs(20)),
    "max": (lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, larger(x, y)), pairs(21)),
    "min": (lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, -larger(-x, -y)), pairs(22)),
    "maxnum": (lambda x, y: np.where(np.isnan(x), y, np.where(np.isnan(y), x, larger(x, y))), pairs(23)),
    "minnum": (lambda x, y: np.where(np.isnan(x), y, np.where(np.isnan(y), x, -larger(-x, -y))), pairs(24)),
}
_SASS = {"fma": "FFMA", "max": "FMNMX.NAN", "min": "FMNMX.NAN", "maxnum": "FMNMX", "minnum": "FMNMX"}

_WHOLE = np.array([*range(-9, 10), 2**31 - 1, -(2**31) + 1], np.int32)
_A, _B = (grid.ravel() for grid in np.meshgrid(_WHOLE, _WHOLE))
_DIVIDEND = np.where(_A == 9, -(2**63), _A.astype(np.int64) * 3)  # beyond 32 bits, too
_FLOATS = np.array([0, -0.0, 1.5, -1.5, 2**31, -(2**31), 2**31 - 128, 3e9, -3e9, np.inf, -np.inf, np.nan], np.float32)


def _towards_zero(x: Array, y: Array) -> Array:
    return (x - np.fmod(x, y)) // y


def _nearest(x: Array) -> Array:
    return np.clip(np.trunc(np.nan_to_num(x.astype(np.float64))), -(2**31), 2**31 - 1)


SCALAR_CASES: dict[str, Case] = {
    f"treadle_{name}": elementwise(
        f"treadle_{name}({', '.join('xyz'[: len(inputs)])})",
        reference,
        *inputs,
        ulps=MAX_ULPS.get(name, 0),
        sass=_SASS.get(name),
    )
    for name, (reference, inputs) in _FUNCTIONS.items()
} | {
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
