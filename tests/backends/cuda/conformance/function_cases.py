"""Functions on floats and doubles: a case for each row of SCALAR_FUNCTIONS, called as the printer calls it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import f32, f64
from xdsl.ir import Attribute

from tests.backends.cuda.conformance.case import Case, elementwise
from tests.backends.cuda.conformance.samples import operands
from treadle.backends.cuda.language import CudaLanguage
from treadle.dialects.scalar import SCALAR_FUNCTIONS, ScalarFunction

Array = NDArray[Any]


def _larger(x: Array, y: Array) -> Array:
    """The maximum without NaN, +0 being larger than -0."""
    return np.where((x > y) | ((x == y) & np.signbit(y)), x, y)


def _fma_of_floats(x: Array, y: Array, z: Array) -> Array:
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


def _fma_of(x: float, y: float, z: float) -> float:
    """x * y + z rounded once."""
    if not (math.isfinite(x) and math.isfinite(y)):
        return x * y + z
    if not math.isfinite(z):
        return z  # whatever the size of the product
    product = Fraction(x) * Fraction(y)
    total = product + Fraction(z)
    if not total:
        return 0.0 if product else x * y + z
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _fma_of_doubles(x: Array, y: Array, z: Array) -> Array:
    return np.array([_fma_of(*map(float, each)) for each in zip(x, y, z, strict=True)])


_EXACT: Mapping[tuple[str, Attribute], Callable[..., Array]] = {
    ("fma", f32): _fma_of_floats,
    ("fma", f64): _fma_of_doubles,
    **{(name, type): definition for type in (f32, f64) for name, definition in {
        "max": lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, _larger(x, y)),
        "min": lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, -_larger(-x, -y)),
        "maxnum": lambda x, y: np.where(np.isnan(x), y, np.where(np.isnan(y), x, _larger(x, y))),
        "minnum": lambda x, y: np.where(np.isnan(x), y, np.where(np.isnan(y), x, -_larger(-x, -y))),
    }.items()},
}  # fmt: skip
"""Definitions more exact than the rows': a product and a sum that are rounded once, and which of two zeros it is."""

_SASS: Mapping[tuple[str, Attribute], str] = {
    ("fma", f32): "FFMA", ("max", f32): "FMNMX.NAN", ("min", f32): "FMNMX.NAN",
    ("maxnum", f32): "FMNMX", ("minnum", f32): "FMNMX",
    ("fma", f64): "DFMA", ("max", f64): "DSETP", ("min", f64): "DSETP",
}  # fmt: skip

OWN_ERROR: Mapping[tuple[str, Attribute], int] = {("erf", f64): 1, ("tanh", f64): 1, ("cosh", f64): 1}
"""What the C library adds to CUDA's errors: to the reference, which Python computes in double, or in the emulator."""


def definition(function: ScalarFunction, type: Attribute) -> Callable[..., Array]:
    """What a function is of numbers of a type."""
    return _EXACT.get((function.name, type), function.numpy)


def _case(number: int, function: ScalarFunction, type: Attribute) -> tuple[str, Case]:
    """What the printer calls, and its case."""
    dtype = np.float32 if type == f32 else np.float64
    expression = CudaLanguage().call(function, type, list("xyz"[: function.operands]))
    case = elementwise(
        expression,
        definition(function, type),
        *operands(function.operands, number, function.spread, dtype),
        ulps=function.ulps("cuda", type) + OWN_ERROR.get((function.name, type), 0),
        result=dtype,
        sass=_SASS.get((function.name, type)),
    )
    return expression[: expression.index("(")].removeprefix("::"), case


FUNCTION_CASES: dict[str, Case] = dict(
    _case(number, function, type)
    for number, function in enumerate(SCALAR_FUNCTIONS)
    for type in (f32, f64)
    if type in function.types("cuda")
)
"""By the name that kernels call."""

OF_LIBRARY = frozenset(name for name in FUNCTION_CASES if not name.startswith("treadle_"))
"""Those of them that are CUDA's own."""
