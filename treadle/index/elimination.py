"""Bounds of a sum under linear facts, by Fourier-Motzkin elimination as far as it pays.

Of `e`, a fact `f >= 0` says `e <= e + c * f` for every c >= 0; with the c that cancels a term of `e`, the sum may have
a smaller range. The terms with the largest coefficients are cancelled first, at most `_DEPTH` in a row: this finds what
the borders of tiles need, and is sound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from treadle.index.atom import Atom, Div, Mod, Monomial
from treadle.index.expr import Expr
from treadle.index.ranges import UNBOUNDED, Range, intersection, is_empty, is_inside, range_product

_DEPTH = 4
"""Facts that are combined: the border of a tile takes the block's, the dimension's and the lane's."""
_TERMS = 2
"""Terms of a sum that are tried for cancelling by several facts: those with the largest coefficients that occur in
one. Where a single fact more is enough, every term is tried: two digits of a position share a light one."""


def bounded(e: Expr, facts: Sequence[Expr], enough: Range = UNBOUNDED) -> Range:
    """The bounds of e where no fact is negative; not closer than `enough`."""
    # What holds in the whole box makes no sum's range smaller, and would be tried in place of what does.
    telling = [fact for fact in facts if (least := fact.range()[0]) is None or least < 0]
    linear = [_linear(fact) for fact in telling]
    boxes = _boxes([e, *facts], facts)
    found = _System(linear, boxes).bounds(_linear(e), enough)
    narrowed = boxes if enough == UNBOUNDED or is_inside(found, enough) else _narrowed(boxes, linear)
    return found if narrowed == boxes else intersection(found, _System(linear, narrowed).bounds(_linear(e), enough))


@dataclass(frozen=True)
class _Linear:
    """`constant + sum of coefficient * monomial`, without the canonical form that an `Expr` keeps."""

    terms: Mapping[Monomial, int]
    constant: int


def _linear(e: Expr) -> _Linear:
    return _Linear(dict(e.terms), e.constant)


class _System:
    """Facts, and the range of each monomial by itself."""

    def __init__(self, facts: Sequence[_Linear], boxes: Mapping[Monomial, Range]):
        self._facts, self._boxes = facts, boxes

    def bounds(self, e: _Linear, enough: Range) -> Range:
        """The bounds of e; not closer than `enough`."""
        lo, hi = enough
        most = self.most(e, hi, _DEPTH)
        least = self.most(_scaled(e, -1), None if lo is None else -lo, _DEPTH)
        return None if least is None else -least, most

    def most(self, e: _Linear, enough: int | None, depth: int, used: frozenset[int] = frozenset()) -> int | None:
        """An upper bound of e; `enough` is low enough, None for the lowest that is found."""
        best = self._largest(e)
        if depth == 0 or (best is not None and enough is not None and best <= enough):
            return best
        for _, scale, combined in self._eliminations(e, used, len(e.terms)):
            found = self._largest(combined)
            if found is not None and enough is not None and found // scale <= enough:
                return found // scale
        for n, scale, combined in self._eliminations(e, used, _TERMS):
            wanted = None if enough is None else enough * scale + scale - 1
            found = self.most(combined, wanted, depth - 1, used | {n})
            if found is None:
                continue
            # `combined` is at least scale * e, and e is whole.
            best = found // scale if best is None else min(best, found // scale)
            if enough is not None and best <= enough:
                break
        return best

    def _eliminations(self, e: _Linear, used: frozenset[int], most: int) -> Iterator[tuple[int, int, _Linear]]:
        """(number of a fact, s, s * e + c * fact) with s, c > 0 where that cancels one of so many heaviest terms."""
        tried = 0
        for monomial in sorted(e.terms, key=lambda m: self._weight(m, e.terms[m]), reverse=True):
            k, before = e.terms[monomial], tried
            for n, fact in enumerate(self._facts):
                opposite = fact.terms.get(monomial, 0)
                if n in used or k * opposite >= 0:
                    continue
                tried = before + 1
                common = gcd(k, opposite)
                yield n, abs(opposite) // common, _combined(e, abs(opposite) // common, fact, abs(k) // common)
            if tried == most:
                return

    def _weight(self, monomial: Monomial, k: int) -> float:
        lo, hi = self._boxes[monomial]
        return float("inf") if lo is None or hi is None else abs(k) * (hi - lo)

    def _largest(self, e: _Linear) -> int | None:
        total = e.constant
        for monomial, k in e.terms.items():
            end = self._boxes[monomial][k > 0]
            if end is None:
                return None
            total += k * end
        return total


def _scaled(e: _Linear, factor: int) -> _Linear:
    return _Linear({m: k * factor for m, k in e.terms.items()}, e.constant * factor)


def _combined(a: _Linear, scale: int, b: _Linear, factor: int) -> _Linear:
    terms = {m: k * scale for m, k in a.terms.items()}
    for monomial, k in b.terms.items():
        terms[monomial] = terms.get(monomial, 0) + k * factor
    return _Linear({m: k for m, k in terms.items() if k}, a.constant * scale + b.constant * factor)


def _boxes(expressions: Sequence[Expr], facts: Sequence[Expr]) -> dict[Monomial, Range]:
    """The range of each monomial; the dividends of quotients and remainders are bounded by the facts, too."""
    boxes: dict[Monomial, Range] = {}
    for monomial in dict.fromkeys(m for e in expressions for m, _ in e.terms):
        found: Range = (1, 1)
        for atom in monomial:
            found = range_product(found, _atom(atom, facts))
        boxes[monomial] = found
    return boxes


def _narrowed(boxes: Mapping[Monomial, Range], facts: Sequence[_Linear]) -> dict[Monomial, Range]:
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
            narrow = intersection(found[monomial], bound)
            found[monomial] = found[monomial] if is_empty(narrow) else narrow
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
