"""Bounds of a sum under linear facts, and under the range of each of its terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.index.atom import Atom, Div, Mod, Monomial
from treadle.index.expr import Expr
from treadle.index.linear_program import ContradictionError, Linear, maximum
from treadle.index.ranges import EMPTY, UNBOUNDED, Range, intersection, is_empty, range_product


def bounded(e: Expr, facts: Sequence[Expr], enough: Range = UNBOUNDED) -> Range:
    """The bounds of e where no fact is negative, not closer than `enough`; an empty range where one always is and that
    is found."""
    # What holds in the whole box says no more than the ranges.
    telling = [_linear(fact) for fact in facts if (least := fact.range()[0]) is None or least < 0]
    boxes = _boxes([e, *facts], facts, telling)
    if any(is_empty(box) for box in boxes.values()):
        return EMPTY
    lo, hi = enough
    form = _linear(e)
    opposite = Linear({m: -k for m, k in form.terms.items()}, -form.constant)
    try:
        most = maximum(form, telling, boxes, hi)
        least = maximum(opposite, telling, boxes, None if lo is None else -lo)
    except ContradictionError:
        return EMPTY
    return None if least is None else -least, most


def _linear(e: Expr) -> Linear[Monomial]:
    return Linear(dict(e.terms), e.constant)


def _boxes(
    expressions: Sequence[Expr], facts: Sequence[Expr], telling: Sequence[Linear[Monomial]]
) -> dict[Monomial, Range]:
    """The range of each monomial; the dividends of quotients and remainders are bounded by the facts, too, and the
    factors of a product: `i * n <= 63 * n` where `i < 64` is a fact."""
    monomials = dict.fromkeys(m for e in expressions for m, _ in e.terms)
    factors = {(atom,): _atom(atom, facts) for m in monomials for atom in m}
    products = {m: _product(m, factors) for m in monomials if len(m) != 1}
    narrow = _narrowed(factors | products, telling)
    return {m: intersection(narrow[m], _product(m, narrow)) for m in monomials}


def _product(monomial: Monomial, factors: Mapping[Monomial, Range]) -> Range:
    found: Range = (1, 1)
    for atom in monomial:
        found = range_product(found, factors[(atom,)])
    return found


def _narrowed(boxes: Mapping[Monomial, Range], facts: Sequence[Linear[Monomial]]) -> dict[Monomial, Range]:
    """The range of each monomial under each fact by itself: `9 - 2 * i - j >= 0` and j >= 0 give i <= 4.

    Source: propagation of bounds (Apt, "Principles of Constraint Programming", 2003, section 6.4), in one pass.
    """
    found = dict(boxes)
    for fact in facts:
        for monomial, k in fact.terms.items():
            others = [(other, c) for other, c in fact.terms.items() if other != monomial]
            ends = [found[other][c > 0] for other, c in others]
            if any(end is None for end in ends):
                continue
            rest = fact.constant + sum(c * end for (_, c), end in zip(others, ends, strict=True) if end is not None)
            # k * monomial >= -rest
            bound: Range = (-(rest // k), None) if k > 0 else (None, rest // -k)
            found[monomial] = intersection(found[monomial], bound)
    return found


def _atom(atom: Atom, facts: Sequence[Expr]) -> Range:
    if not isinstance(atom, Div | Mod):
        return atom.range
    # Facts with quotients of their own would need each other's ranges.
    plain = [fact for fact in facts if not any(isinstance(a, Div | Mod) for m, _ in fact.terms for a in m)]
    lo, hi = bounded(atom.arg, plain)
    first, last = None if lo is None else lo // atom.divisor, None if hi is None else hi // atom.divisor
    if isinstance(atom, Div):
        return intersection((first, last), atom.range)
    if lo is not None and hi is not None and first is not None and first == last:
        return lo - first * atom.divisor, hi - first * atom.divisor
    return atom.range


__all__ = ["bounded"]
