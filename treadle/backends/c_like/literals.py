"""Numbers as C literals that read back to the same value."""

from __future__ import annotations

import math

import numpy as np

_DECIMAL_DIGITS = 9


def float_literal(value: float, width: int, infinity: str, nan: str) -> str:
    """A float of 16, 32 or 64 bits: the shortest decimal that reads back exactly, or 0x1p-20.

    `infinity` and `nan` are the language's names for the values that have no literal.
    """
    if math.isnan(value):
        return nan
    if math.isinf(value):
        return infinity if value > 0 else f"-{infinity}"
    suffix = "" if width == 64 else "f"
    if width == 64:
        text = repr(float(value))
    else:
        with np.errstate(over="ignore"):
            narrow = np.float32(value)
        if math.isinf(narrow):
            return infinity if value > 0 else f"-{infinity}"
        text = np.format_float_positional(narrow, trim="0", unique=True)
        if not 1e-4 <= abs(narrow) < 1e9 and narrow != 0:
            text = np.format_float_scientific(narrow, trim="0", unique=True)
    if len(text.strip("-0.")) > _DECIMAL_DIGITS + 1 and math.frexp(value)[0] in (0.5, -0.5):
        text = _power_of_two(value)
    return text + suffix


def int_literal(value: int, width: int, wide_suffix: str = "L") -> str:
    """A signed integer of `width` bits; the most negative ones have no literal of their own in C."""
    if value == -(1 << 63):
        return f"(-{(1 << 63) - 1}{wide_suffix} - 1)"
    if value == -(1 << 31):
        return f"(-{(1 << 31) - 1} - 1)" if width <= 32 else f"-{1 << 31}{wide_suffix}"
    return f"{value}{wide_suffix}" if not -(1 << 31) <= value < 1 << 31 else str(value)


def _power_of_two(value: float) -> str:
    mantissa, exponent = math.frexp(value)
    return f"{'-' if mantissa < 0 else ''}0x1p{exponent - 1}"
