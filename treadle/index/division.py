"""Exact division of index expressions."""

from __future__ import annotations

from treadle.index.atom import Atom, Monomial
from treadle.index.expr import Expr, const


def exact_quotient(a: Expr, b: Expr) -> Expr | None:
    """The expression q with q * b == a for all values, if it is a single term; None if there is none, or b is 0."""
    if not a.terms and not a.constant:
        return None if b.as_int() == 0 else const(0)
    divisor = b.as_int()
    if divisor is not None:
        fits = divisor != 0 and a.constant % divisor == 0 and all(k % divisor == 0 for _, k in a.terms)
        return Expr(tuple((m, k // divisor) for m, k in a.terms), a.constant // divisor) if fits else None
    candidates = [(m, k) for m, k in a.terms] + ([((), a.constant)] if a.constant else [])
    leading, scale = b.terms[0]
    for monomial, k in candidates:
        rest = _without_all(monomial, leading)
        if rest is None or k % scale:
            continue
        quotient = Expr(((rest, k // scale),), 0) if rest else const(k // scale)
        if quotient * b == a:
            return quotient
    return None


def _without_all(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """The monomial divided by some of its atoms; None if one is missing."""
    left: list[Atom] = list(monomial)
    for atom in factors:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


__all__ = ["exact_quotient"]
