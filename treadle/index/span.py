"""The least and the greatest value of an expression over some of its variables, as expressions of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treadle.index.atom import Atom, Div, Mod, Monomial, Var
from treadle.index.expr import Expr, const, floordiv, mod


@dataclass(frozen=True)
class Span:
    """`lower <= e <= upper`, and `upper - lower <= width`."""

    lower: Expr
    upper: Expr
    width: int


def span_of(e: Expr, is_inner: Callable[[Var], bool]) -> Span | None:
    """Bounds of e over all values of the inner variables, in terms of the others; None where there are none.

    A quotient has the quotients of its dividend's bounds. A remainder may start again from 0 inside the span of its
    dividend; of one that is shorter than the divisor it is at least the remainder of the upper bound, less the length:
    `(x + r) mod 8 >= (x + 3) mod 8 - 3` for r up to 3, and so the remainders reach below n just where that is below n.
    """
    if not any(map(is_inner, e.vars())):
        return Span(e, e, 0)
    lower = upper = const(e.constant)
    width = 0
    for monomial, k in e.terms:
        found = _of_monomial(monomial, is_inner)
        if found is None:
            return None
        lower = lower + (found.lower if k > 0 else found.upper) * k
        upper = upper + (found.upper if k > 0 else found.lower) * k
        width += found.width * abs(k)
    return Span(lower, upper, width)


def _of_monomial(monomial: Monomial, is_inner: Callable[[Var], bool]) -> Span | None:
    product = Expr(((monomial, 1),), 0)
    if not any(map(is_inner, product.vars())):
        return Span(product, product, 0)
    return _of_atom(monomial[0], is_inner) if len(monomial) == 1 else _between(*product.range())


def _of_atom(atom: Atom, is_inner: Callable[[Var], bool]) -> Span | None:
    if not isinstance(atom, Div | Mod):
        return _between(*atom.range)
    dividend, c = span_of(atom.arg, is_inner), atom.divisor
    if dividend is None:
        return None if isinstance(atom, Div) else _between(0, c - 1)
    lower, upper, width = dividend.lower, dividend.upper, dividend.width
    if isinstance(atom, Div):
        return Span(floordiv(lower, c), floordiv(upper, c), -(-width // c))
    if width >= c - 1:
        return _between(0, c - 1)
    return Span(mod(upper, c) - width, mod(lower, c) + width, c - 1 + 2 * width)


def _between(lo: int | None, hi: int | None) -> Span | None:
    return None if lo is None or hi is None else Span(const(lo), const(hi), hi - lo)


__all__ = ["Span", "span_of"]
