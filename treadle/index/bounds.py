"""Ranges of expressions under facts: other expressions that are known not to be negative.

Facts are about integers: `7 - 2 * i >= 0` implies `3 - i >= 0`, and `3 - i // 16 >= 0` implies `63 - i >= 0`. A
variable that facts and the expression divide (`i % 8` here, `i % 32` there) is replaced by its digits, and a sum that
they divide by a new variable. `treadle/index/linear_bounds.py` solves the linear problem that remains.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product
from math import gcd

from treadle.index.atom import Div, Mod, Var
from treadle.index.comparison import Comparison
from treadle.index.divisors import divisor_chain, divisors_of
from treadle.index.expr import Expr, const, var
from treadle.index.linear_bounds import bounded
from treadle.index.ranges import EMPTY, UNBOUNDED, Range, intersection, is_empty, is_inside, range_union

_FORMS = 4
"""How often sums are replaced by variables, whose digits may be summed and divided again."""
_MOST_CASES = 16
"""Values of a variable that are tried one after another: a split of K has at most that many parts."""


@dataclass(frozen=True)
class _Sum:
    """The key of the variable that replaces a sum."""

    total: Expr


def facts_of(comparisons: Iterable[Comparison]) -> tuple[Expr, ...]:
    """Expressions that are not negative if the comparisons are true."""
    facts: list[Expr] = []
    for comparison in comparisons:
        d = comparison.difference
        if comparison.kind in ("slt", "sle"):
            facts.append(-d - 1 if comparison.kind == "slt" else -d)
        elif comparison.kind in ("sgt", "sge"):
            facts.append(d - 1 if comparison.kind == "sgt" else d)
        elif comparison.kind == "eq":
            facts += [d, -d]
    return tuple(fact for fact in facts if fact.terms or fact.constant < 0)


def range_under(e: Expr, facts: Sequence[Expr], enough: Range = UNBOUNDED) -> Range:
    """The bounds of e where no fact is negative; where one always is, an empty range if that is found.

    enough: once they are inside these bounds, closer ones are not looked for; for some, one variable's values are tried
    """
    if not facts or _suffices(e.range(), enough):
        return e.range()
    found = _range_in_forms(e, facts, enough)
    cases = None if enough == UNBOUNDED or is_inside(found, enough) or is_empty(found) else _cases([e, *facts])
    if cases is None:
        return found
    each = [_range_in_forms(case[0], case[1:], enough) for case in cases]
    possible = [case for case in each if not is_empty(case)]
    return intersection(found, reduce(range_union, possible)) if possible else EMPTY


def _range_in_forms(e: Expr, facts: Sequence[Expr], enough: Range) -> Range:
    """Bounds from the expressions as they are, then with other variables, until they suffice."""
    found, form = e.range(), _in_digits([e, *facts])
    for _ in range(_FORMS):
        found = intersection(found, _range_in(form, enough))
        renamed = None if _suffices(found, enough) or is_empty(found) else _in_sums(form)
        if renamed is None:
            break
        form = _in_digits(renamed)
    return found


def _cases(expressions: Sequence[Expr]) -> list[list[Expr]] | None:
    """Case distinction: the expressions for each value of a variable that is divided in multiples, as `b` in `3 * b //
    16`, the one with the fewest values; None if all have too many."""
    extents: dict[Var, int] = {}
    digits = _in_digits(expressions)
    multiples = [atom.arg for e in digits for atom in _divisions(e) if all(k != 1 for _, k in atom.arg.terms)]
    for v in (v for argument in multiples for v in argument.vars()):
        lo, hi = v.range
        if lo is not None and hi is not None and 1 < hi - lo + 1 <= _MOST_CASES:
            extents[v] = hi - lo + 1
    if not extents:
        return None
    chosen = min(extents, key=lambda v: extents[v])
    first = chosen.lo or 0
    return [[e.substitute({chosen.key: const(first + n)}) for e in digits] for n in range(extents[chosen])]


def _suffices(found: Range, enough: Range) -> bool:
    return enough != UNBOUNDED and is_inside(found, enough)


def _range_in(expressions: Sequence[Expr], enough: Range) -> Range:
    e, *facts = expressions
    sharp = [f for fact in facts for f in _sharpened(fact)]
    known = list(dict.fromkeys(f for fact in sharp for f in (fact, *_in_larger_steps(fact))))
    found = bounded(e, known, enough)
    if enough == UNBOUNDED or is_inside(found, enough) or is_empty(found):
        return found
    envelopes = list(dict.fromkeys(envelope for each in expressions for envelope in _envelopes(each)))
    return intersection(found, bounded(e, known + envelopes, enough)) if envelopes else found


def _envelopes(e: Expr) -> Iterator[Expr]:
    """What the ranges of two factors say of their product: `(x - 1) * (2 - y) >= 0` bounds `2 * x - x * y`.

    Source: McCormick, "Computability of global solutions to factorable nonconvex programs: Part I" (1976).
    """
    for monomial in (monomial for monomial, _ in e.terms if len(monomial) > 1):
        for n, atom in enumerate(monomial):
            x, y = (Expr(((factor, 1),), 0) for factor in ((atom,), monomial[:n] + monomial[n + 1 :]))
            for one, other in product(_distances(x), _distances(y)):
                yield one * other


def _distances(e: Expr) -> list[Expr]:
    """From the ends of an expression's range, which are not negative."""
    lo, hi = e.range()
    return [*([] if lo is None else [e - lo]), *([] if hi is None else [hi - e])]


def _in_larger_steps(fact: Expr) -> Iterator[Expr]:
    """What the fact implies for the terms that share a divisor, whatever the others are: `9 - 2 * i - j >= 0` and j >=
    0 imply `4 - i >= 0`."""
    for step in sorted({abs(k) for _, k in fact.terms} - {1}):
        others = Expr(tuple((m, k) for m, k in fact.terms if k % step), 0)
        most = others.range()[1]
        if others.terms and most is not None:
            yield from _sharpened(fact - others + most)


def _in_sums(expressions: Sequence[Expr]) -> list[Expr] | None:
    """The same expressions with a variable for each sum that they divide, as `b` in `(r + 16 * b) // 12` is divided, in
    place of one of the sum's own, and what bounds that one; None where nothing but variables is divided."""
    found = list(expressions)
    replaced: set[Hashable] = set()
    while (divided := _divided_sum(found, replaced)) is not None:
        total, own = divided
        replaced.add(own.key)
        whole = var(_Sum(total), *total.range())
        value = whole - (total - var(own.key, *own.range))
        found = [e.substitute({own.key: value}) for e in found]
        lo, hi = own.range
        found += ([] if lo is None else [value - lo]) + ([] if hi is None else [hi - value])
    return found if replaced else None


def _divided_sum(expressions: Iterable[Expr], replaced: Collection[Hashable]) -> tuple[Expr, Var] | None:
    """A sum that is divided, and one of its terms that is a variable by itself."""
    for argument in (atom.arg for e in expressions for atom in _divisions(e)):
        if len(argument.terms) > 1 or argument.constant:
            alone = (m[0] for m, k in argument.terms if k == 1 and len(m) == 1)
            own = next((a for a in alone if isinstance(a, Var) and not _is_sum(a) and a.key not in replaced), None)
            if own is not None:
                return argument, own
        inner = _divided_sum([argument], replaced)
        if inner is not None:
            return inner
    return None


def _divisions(e: Expr) -> Iterator[Div | Mod]:
    return (atom for monomial, _ in e.terms for atom in monomial if isinstance(atom, Div | Mod))


def _is_sum(variable: Var) -> bool:
    key: object = variable.key
    return isinstance(key, _Sum)


def _in_digits(expressions: Sequence[Expr]) -> list[Expr]:
    """The same expressions over the digits of each variable that they divide, and what bounds the digits."""
    variables: dict[Hashable, Var] = {v.key: v for e in expressions for v in e.vars()}
    digits: dict[Hashable, Expr] = {}
    bounds: list[Expr] = []
    for key, divisors in divisors_of(expressions).items():
        lo, hi = variables[key].range
        # The last digit has the sign of the variable: it is negative where that is.
        is_natural = lo is not None and lo >= 0
        chain = divisor_chain(d for d in divisors if not is_natural or hi is None or d <= hi)
        if not chain:
            continue
        weights = (1, *chain)
        total = const(0)
        for weight, following in pairwise(weights):
            total = total + var((key, weight), 0, following // weight - 1) * weight
        top = weights[-1]
        total = total + var((key, top), *(None if end is None else end // top for end in (lo, hi))) * top
        digits[key] = total
        bounds += [total - lo] if lo is not None and lo % top else []
        bounds += [hi - total] if hi is not None and (hi + 1) % top else []
    if not digits:
        return list(expressions)
    return [*(e.substitute(digits) for e in expressions), *bounds]


def _sharpened(fact: Expr) -> Iterator[Expr]:
    """The fact rounded to the values that its terms can have, and what it implies for the dividend of a quotient."""
    step = gcd(*(k for _, k in fact.terms))
    if not step:
        return
    fact = Expr(tuple((m, k // step) for m, k in fact.terms), fact.constant // step)
    yield fact
    for monomial, k in fact.terms:
        atom = monomial[0]
        if len(monomial) > 1 or not isinstance(atom, Div) or abs(k) != 1:
            continue
        rest = fact - Expr(((monomial, k),), 0)
        # q = x // d: q <= rest if x <= d * rest + d - 1, and q >= -rest if x >= -d * rest.
        yield from _sharpened(rest * atom.divisor + (atom.arg if k > 0 else atom.divisor - 1 - atom.arg))


__all__ = ["facts_of", "range_under"]
