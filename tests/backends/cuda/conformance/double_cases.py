"""Mathematics of doubles, and what becomes of them in 16 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cuda.conformance.accuracy import MAX_ULPS
from tests.backends.cuda.conformance.case import Case, elementwise
from tests.backends.cuda.conformance.samples import SPECIALS
from tests.backends.cuda.conformance.scalar_cases import larger

Array = NDArray[Any]

_F64 = np.finfo(np.float64)
_POSITIVE = (
    *(float(_F64.smallest_subnormal), float(_F64.tiny), float(_F64.max), float(np.nextafter(1, 0))),
    *(2.0**51 + 0.5, 2.0**52 - 0.5, 2.0**52 + 1.0, 2.0**53 + 2.0),  # ties of roundings, and no ties
    *(709.78, 709.79, 708.39, 744.44, 745.14),  # where exp overflows, becomes subnormal, and 0
    *(math.pi / 2, math.pi, 1e300),  # where reducing an argument by pi/2 is hard
)
_SPECIALS: Array = np.array([*SPECIALS.astype(np.float64), *_POSITIVE, *(-x for x in _POSITIVE)])


def _reals(seed: int, scale: float = 8.0) -> Array:
    """The specials, doubles of every magnitude, and many near zero. NaNs are quiet."""
    generator = np.random.default_rng(seed)
    every = generator.integers(0, 2**64, 1024, np.uint64).view(np.float64).copy()
    every[np.isnan(every)] = np.nan
    return np.concatenate([_SPECIALS, every, generator.standard_normal(1024) * scale])


def _pairs(seed: int) -> tuple[Array, Array]:
    """Every special with every other, and random pairs."""
    first, second = (grid.ravel() for grid in np.meshgrid(_SPECIALS, _SPECIALS))
    return np.concatenate([first, _reals(seed)]), np.concatenate([second, np.roll(_reals(seed + 1), 7)])


def _triples(seed: int) -> tuple[Array, Array, Array]:
    """Pairs with sums that cancel, and randoms, as the third."""
    x, y = _pairs(seed)
    with np.errstate(all="ignore"):
        near = np.nextafter(-(x * y), 0)
    return x, y, np.where(np.arange(x.size) % 2 == 0, near, np.resize(_reals(seed + 2), x.size))


def _fma_of(x: float, y: float, z: float) -> float:
    """x * y + z rounded once."""
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        return x * y + z
    product = Fraction(x) * Fraction(y)
    total = product + Fraction(z)
    if not total:
        return 0.0 if product else x * y + z
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _fma(x: Array, y: Array, z: Array) -> Array:
    return np.array([_fma_of(*map(float, each)) for each in zip(x, y, z, strict=True)])


_FUNCTIONS: dict[str, tuple[Callable[..., Array], tuple[Array, ...]]] = {
    "exp": (np.exp, (_reals(1, 400),)),
    "expm1": (np.expm1, (_reals(2),)),
    "log": (np.log, (_reals(3),)),
    "log1p": (np.log1p, (_reals(4, 0.5),)),
    "sqrt": (np.sqrt, (_reals(5),)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (_reals(6),)),
    "sin": (np.sin, (_reals(7, 100),)),
    "cos": (np.cos, (_reals(8, 100),)),
    "tan": (np.tan, (_reals(9, 100),)),
    "tanh": (np.tanh, (_reals(10, 2),)),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), (_reals(11, 2),)),
    "pow": (np.power, _pairs(12)),
    "mod": (np.fmod, _pairs(13)),
    "fma": (_fma, _triples(14)),
    "abs": (np.abs, (_reals(15),)),
    "floor": (np.floor, (_reals(16),)),
    "ceil": (np.ceil, (_reals(17),)),
    "trunc": (np.trunc, (_reals(18),)),
    "roundeven": (np.rint, (_reals(19),)),
    "copysign": (np.copysign, _pairs(20)),
    "max": (lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, larger(x, y)), _pairs(21)),
    "min": (lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, -larger(-x, -y)), _pairs(22)),
    "maxnum": (lambda x, y: np.where(np.isnan(x), y, np.where(np.isnan(y), x, larger(x, y))), _pairs(23)),
    "minnum": (lambda x, y: np.where(np.isnan(x), y, np.where(np.isnan(y), x, -larger(-x, -y))), _pairs(24)),
}
_OWN_ERROR = {"erf": 1, "tanh": 1}
"""What the C library adds to CUDA's errors: to the reference, which Python computes in double, or in the emulator."""
_SASS = {"fma": "DFMA", "max": "DSETP", "min": "DSETP"}

_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
_FINITE_HALVES = _HALVES[np.isfinite(_HALVES)][::5]
_BFLOATS = (np.random.default_rng(40).integers(0x0080, 0x7F00, 4096).astype(np.uint32) << 16).view(np.float32)


def _beside_ties(values: Array, gap: Array) -> Array:
    """What lies halfway to the next value, and so little beside it that a float would not tell."""
    ties = values + gap / 2
    return np.concatenate([_SPECIALS, values, ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf)])


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
    f"treadle_{name}_double": elementwise(
        f"treadle_{name}_double({', '.join('xyz'[: len(inputs)])})",
        reference,
        *inputs,
        ulps=MAX_ULPS.get(f"{name}_double", 0) + _OWN_ERROR.get(name, 0),
        result=np.float64,
        sass=_SASS.get(name),
    )
    for name, (reference, inputs) in _FUNCTIONS.items()
} | {
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
