"""Remainders of divisions."""

from __future__ import annotations

from treadle.dialects.scalar import is_unsigned
from treadle.frontends.common.builder import GraphBuilder, Tensor


def floored_remainder(g: GraphBuilder, a: Tensor, b: Tensor) -> Tensor:
    """The remainder of Python, whose sign is the divisor's."""
    remainder = g.binary("mod", a, b)
    if is_unsigned(a.element):
        return remainder
    if a.is_float:
        return _with_sign_of(g, remainder, b)
    signs_differ = g.binary("lt", g.binary("xor", remainder, b), 0)
    wraps = g.binary("and", signs_differ, g.binary("ne", remainder, 0))
    return g.where(wraps, g.add(remainder, b), remainder)


def _with_sign_of(g: GraphBuilder, remainder: Tensor, b: Tensor) -> Tensor:
    """C's remainder of a division by `b` as Python's, whose sign is that of `b`, also for a zero."""
    negative = g.binary("lt", b, 0)
    other = g.binary("xor", g.binary("lt", remainder, 0), negative)
    zero = g.where(negative, g.scalar(-0.0, b), g.scalar(0.0, b))
    signed = g.where(other, g.add(remainder, b), remainder)
    return g.where(g.binary("eq", remainder, 0), zero, signed)


__all__ = ["floored_remainder"]
