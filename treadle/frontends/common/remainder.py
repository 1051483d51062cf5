"""Remainders of divisions."""

from __future__ import annotations

import numpy as np

from treadle.dialects.scalar import is_unsigned
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import range_of
from treadle.frontends.common.symbolic_elements import symbols_in


def floored_remainder(g: GraphBuilder, a: Tensor, b: Tensor) -> Tensor:
    """The remainder of Python, whose sign is the divisor's."""
    remainder = g.binary("mod", a, b)
    if is_unsigned(a.element) or (_is_not_negative(a) and _is_not_negative(b)):
        return remainder
    if a.is_float:
        return _with_sign_of(g, remainder, b)
    signs_differ = g.binary("lt", g.binary("xor", remainder, b), 0)
    wraps = g.binary("and", signs_differ, g.binary("ne", remainder, 0))
    return g.where(wraps, g.add(remainder, b), remainder)


def _is_not_negative(x: Tensor) -> bool:
    """Whether integers are known that are not negative in any call."""
    if x.elements is None:
        return x.array is not None and x.dtype.kind in "iu" and not np.less(x.array, 0).any()
    ranges = [range_of(value) for value in symbols_in(x.elements)]
    return all(known is not None and known[0] >= 0 for known in ranges)


def _with_sign_of(g: GraphBuilder, remainder: Tensor, b: Tensor) -> Tensor:
    """C's remainder of a division by `b` as Python's, whose sign is that of `b`, also for a zero."""
    negative = g.binary("lt", b, 0)
    other = g.binary("xor", g.binary("lt", remainder, 0), negative)
    zero = g.where(negative, g.scalar(-0.0, b), g.scalar(0.0, b))
    signed = g.where(other, g.add(remainder, b), remainder)
    return g.where(g.binary("eq", remainder, 0), zero, signed)


__all__ = ["floored_remainder"]
