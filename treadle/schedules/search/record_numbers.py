"""Numbers of records, which are text that anybody can edit: what no search writes is refused before it is computed
with."""

from __future__ import annotations

MOST = 1 << 62
"""Of a whole number: it is an attribute of 64 bits elsewhere."""
_LEAST_REAL, _MOST_REAL = 1e-9, 1e18
"""Of any other: microseconds, bytes, counts. Quotients and products of a few such numbers are finite."""


def whole(value: object, least: int = 0, most: int = MOST) -> int:
    """A whole number within bounds; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{_shown(value)} is no whole number from {least} to {most}")
    return value


def real(value: object) -> float:
    """0 or a positive number of a usual size; ValueError for anything else, infinity and NaN included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_REAL:
        raise ValueError(f"{_shown(value)} is no number from 0 to {_MOST_REAL:g}")
    if 0 < value < _LEAST_REAL:
        raise ValueError(f"{_shown(value)} is neither 0 nor at least {_LEAST_REAL:g}")
    return float(value)


def _shown(value: object) -> str:
    """A value in a message, which is short; the digits of a very large number are not computed."""
    if isinstance(value, int) and abs(value) > MOST:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


__all__ = ["MOST", "real", "whole"]
