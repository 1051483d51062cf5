"""What index expressions are as functions of their variables: linear parts, divisors, extremes, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

import numpy as np

from treadle.index.expr import (
    Atom,
    Div,
    Expr,
    Mod,
    Monomial,
    Range,
    Var,
    const,
    floordiv,
    mod,
    sum_of,
    var,
    variables_of,
    without,
)

# Expressions as linear functions of one variable, and their divisors.


def split_linear(e: Expr, key: Hashable) -> tuple[Expr, Expr] | None:
    """(coefficient, rest) with e = coefficient * key + rest, or None where e is not affine in key."""
    coefficient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, k in e.terms:
        holders = [a for a in monomial if any(v.key == key for v in variables_of(a))]
        if len(holders) > 1 or (holders and not isinstance(holders[0], Var)):
            return None
        if holders:
            coefficient[without(monomial, holders[0])] = k
        else:
            rest[monomial] = k
    constant = coefficient.pop((), 0)
    return sum_of(coefficient, constant), sum_of(rest, e.constant)


def stride_along(e: Expr, key: Hashable) -> int | None:
    """How far e advances when the variable advances by one; None where that is not constant."""
    split = split_linear(e, key)
    return None if split is None else split[0].as_int()


def depends_on(e: Expr, key: Hashable) -> bool:
    """Whether the variable occurs in e."""
    return any(v.key == key for v in e.vars())


def function_of(key: Hashable, arguments: Iterable[Expr]) -> Expr:
    """An unknown function of some expressions, named `key`: it is affine in none of their variables. It depends on each
    variable, even one that would cancel in the sum of the expressions (`max(i, -i)`).
    """
    unknown = var(key, None, None)
    terms: dict[Monomial, int] = {(v,): 1 for argument in arguments for v in argument.vars()}
    if not terms:
        return unknown
    ((own, _),) = unknown.terms
    terms[own] = terms.get(own, 0) + 1
    return floordiv(sum_of(terms, 0), 2)


def alignment(e: Expr) -> int:
    """The largest known divisor of e: the gcd of its coefficients; 0 for the constant 0."""
    return gcd(e.constant, *(k for _, k in e.terms))


def always_less(a: Expr | int, b: Expr | int) -> bool | None:
    """Whether a < b for all values in range; None where the ranges do not decide it."""
    difference = (a if isinstance(a, Expr) else const(a)) - b
    lo, hi = difference.range()
    if hi is not None and hi < 0:
        return True
    return False if lo is not None and lo >= 0 else None


# Exact division of index expressions.


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


# The divisors of the quotients and remainders that expressions take of their variables.


def divisors_of(expressions: Iterable[Expr]) -> dict[Hashable, set[int]]:
    """For each variable v of which expressions have v / d, v % b or (v / a) % b: all d, b, a and a * b.

    Only quotients and remainders of the variable itself count: those of a sum are no digits of its parts.
    """
    collector = _Collector()
    for e in expressions:
        collector.visit(e)
    return collector.divisors


def divisor_chain(divisors: Iterable[int]) -> Sequence[int]:
    """The longest ascending list of divisors above 1 in which each divides the next."""
    chains: list[tuple[int, ...]] = []
    for divisor in sorted(d for d in divisors if d > 1):
        best = max((chain for chain in chains if divisor % chain[-1] == 0), key=len, default=())
        chains.append((*best, divisor))
    return max(chains, key=len, default=())


class _Collector:
    """Gathers the divisors of every variable from expressions; each expression and atom is visited once."""

    def __init__(self) -> None:
        self.divisors: dict[Hashable, set[int]] = {}
        self._seen: set[Atom] = set()

    def visit(self, expr: Expr) -> None:
        for monomial, _ in expr.terms:
            for atom in monomial:
                if isinstance(atom, Div | Mod) and atom not in self._seen:
                    self._seen.add(atom)
                    self._atom(atom)

    def _atom(self, atom: Div | Mod) -> None:
        inner = atom.arg.as_atom()
        scale = 1
        if isinstance(inner, Div):
            # (v / a) % b divides by a, which the inner quotient gives below, and by a * b.
            scale, inner = inner.divisor, inner.arg.as_atom()
        if isinstance(inner, Var):
            self.divisors.setdefault(inner.key, set()).add(scale * atom.divisor)
        self.visit(atom.arg)


# Comparisons of indices in one form: the sign of a difference.

_NEGATED = {"slt": "sge", "sge": "slt", "sle": "sgt", "sgt": "sle", "eq": "ne", "ne": "eq"}


@dataclass(frozen=True)
class Comparison:
    """`difference kind 0` for a kind of `slt sle sgt sge eq ne`."""

    kind: str
    difference: Expr

    def negated(self) -> Comparison:
        """The negation."""
        return Comparison(_NEGATED[self.kind], self.difference)

    def truth(self) -> bool | None:
        """Whether it is true for all values in range, or for none; None where the ranges do not decide it."""
        if self.kind in ("slt", "sge"):
            below = always_less(self.difference, 0)
            return below if self.kind == "slt" or below is None else not below
        if self.kind in ("sle", "sgt"):
            below = always_less(self.difference, 1)
            return below if self.kind == "sle" or below is None else not below
        lo, hi = self.difference.range()
        if lo == hi == 0:
            return self.kind == "eq"
        apart = (lo is not None and lo > 0) or (hi is not None and hi < 0)
        return self.kind == "ne" if apart else None


def comparisons_of(kind: str, lhs: Expr, rhs: Expr) -> tuple[Comparison, ...] | None:
    """The conjunction that is `lhs kind rhs`, a kind of `arith.cmpi`; None where an unsigned one has no signed
    form."""
    if not kind.startswith("u"):
        return (Comparison(kind, lhs - rhs),)
    signed = Comparison(f"s{kind[1:]}", lhs - rhs)
    if is_natural(lhs) and is_natural(rhs):
        return (signed,)
    if kind in ("ult", "ule") and is_natural(rhs):
        return (Comparison("sge", lhs), signed)
    return None


def truth_of(comparisons: Sequence[Comparison] | None) -> bool | None:
    """Whether all comparisons are true for all values in range (True), or one of them for none (False)."""
    truths = [None] if comparisons is None else [comparison.truth() for comparison in comparisons]
    if False in truths:
        return False
    return None if None in truths else True


def is_natural(e: Expr) -> bool:
    """Whether e is never negative, by the ranges."""
    lo, _ = e.range()
    return lo is not None and lo >= 0


def likelihood(kind: str, bounds: Range) -> float:
    """The fraction of a range of integers for which a comparison with 0 is true; 1 of a range without ends."""
    lo, hi = bounds
    if lo is None or hi is None:
        return 1.0
    size = hi - lo + 1
    below = min(max(0 - lo, 0), size)
    zero = 1 if lo <= 0 <= hi else 0
    counted = {"slt": below, "sle": below + zero, "sgt": size - below - zero, "sge": size - below, "eq": zero}
    return counted.get(kind, size - zero) / size


# The smallest and the largest value of an expression, over all values of its variables.

MOST_POINTS = 1 << 16
"""Combinations of values that are tried, at most."""
_LARGEST = 1 << 62
"""Below it no sum of 64 bits wraps."""


@lru_cache(maxsize=4096)
def extremes(e: Expr) -> Range:
    """Inclusive bounds of an expression, never tighter than its values are; None where unbounded.

    They are met where the expression rises or falls with each variable, or where the values of the others are few
    enough to try all: `x - x // 2` of x in 1 to 20 is 1 to 10, where `Expr.range` says -9 to 20.
    """
    low, high = e.range()
    if not e.terms or low is None or high is None or _magnitude(e) >= _LARGEST:
        return low, high
    directions = _directions(e)
    others = [v for v, direction in directions.items() if direction == 0]
    counts = [_count(v) for v in others]
    if prod(counts) > MOST_POINTS:
        return low, high
    points = np.indices(counts).reshape(len(counts), prod(counts))
    free = {v.key: points[n] + _bounds(v)[0] for n, v in enumerate(others)}
    ends = [
        {v.key: _bounds(v)[(direction > 0) == highest] for v, direction in directions.items() if direction}
        for highest in (False, True)
    ]
    least, greatest = (np.asarray(e.evaluate(free | end)) for end in ends)  # pyright: ignore[reportArgumentType]
    return int(least.min()), int(greatest.max())


def _bounds(v: Var) -> tuple[int, int]:
    assert v.lo is not None and v.hi is not None
    return v.lo, v.hi


def _count(v: Var) -> int:
    return _bounds(v)[1] - _bounds(v)[0] + 1


def _directions(e: Expr) -> dict[Var, int]:
    """For each variable 1 if the expression never falls with it, -1 if it never rises, 0 if neither is known."""
    found: dict[Var, int] = {}
    for monomial, coefficient in e.terms:
        positive = len(monomial) == 1 or all(atom.range[0] is not None and atom.range[0] >= 0 for atom in monomial)
        sign = (1 if coefficient > 0 else -1) if positive else 0
        for atom in monomial:
            for v, direction in _directions_of_atom(atom).items():
                moved = direction * sign
                found[v] = moved if found.setdefault(v, moved) == moved else 0
    return found


def _directions_of_atom(atom: Atom) -> dict[Var, int]:
    if isinstance(atom, Div):
        return _directions(atom.arg)
    if isinstance(atom, Mod):
        return dict.fromkeys(atom.arg.vars(), 0)
    return {atom: 1} if isinstance(atom, Var) else {}


def _magnitude(e: Expr) -> int:
    """The largest magnitude of any sum of its terms, and of those in its quotients; beyond all where unbounded."""
    total, inner = abs(e.constant), 0
    for monomial, coefficient in e.terms:
        size = abs(coefficient)
        for atom in monomial:
            low, high = atom.range
            if low is None or high is None:
                return _LARGEST
            size *= max(abs(low), abs(high), 1)
            inner = max(inner, _magnitude(atom.arg) if isinstance(atom, Div | Mod) else 0)
        total += size
    return max(total, inner)


# The least and the greatest value of an expression over some of its variables, as expressions of the others.


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
