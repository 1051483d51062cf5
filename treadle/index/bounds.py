"""Ranges of expressions under facts: other expressions that are known not to be negative.

Facts are about integers: `7 - 2 * i >= 0` implies `3 - i >= 0`, and `3 - i // 16 >= 0` implies `63 - i >= 0`. A
variable that facts and the expression divide (`i % 8` here, `i % 32` there) is replaced by its digits, and a sum that
they divide by a new variable. A linear program is what remains.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product
from math import gcd
from typing import Generic, TypeVar

from treadle.index.algebra import Comparison, divisor_chain, divisors_of
from treadle.index.expr import (
    EMPTY,
    UNBOUNDED,
    Atom,
    Div,
    Expr,
    Mod,
    Monomial,
    Range,
    Var,
    const,
    intersection,
    is_empty,
    is_inside,
    range_product,
    range_union,
    var,
)

# Bounds of a sum under linear facts, and under the range of each of its terms.


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


# The largest value of a sum under linear facts and within the range of each variable: an exact linear program.
#
# This is the dual simplex method for variables with two ends. It starts with every variable at the end where the sum is
# the largest, which bounds the sum whatever the facts say. Each step then moves to the border of one fact that does not
# hold there; it leaves a bound that is no higher than the one before, so that the method may end early.
#
# Source: C. E. Lemke, "The dual method of solving the linear programming problem", Naval Research Logistics Quarterly 1
# (1954); with dictionaries and two ends as V. Chvatal, "Linear Programming" (1983), chapters 2, 8 and 10. Of several
# steps the one that R. G. Bland chooses, "New finite pivoting rules for the simplex method" (1977): the method ends.

K = TypeVar("K", bound=Hashable)

_FAR = 1 << 256
"""Stands for an end that a range does not have."""


@dataclass(frozen=True)
class Linear(Generic[K]):
    """`constant + sum of coefficient * variable`."""

    terms: Mapping[K, int]
    constant: int


class ContradictionError(Exception):
    """No values of the variables are within their ranges and make all facts hold."""


def maximum(
    e: Linear[K], facts: Sequence[Linear[K]], ranges: Mapping[K, Range], enough: int | None = None
) -> int | None:
    """The largest value of e where no fact is negative, rounded down; None where it has no end. ContradictionError if
    facts and ranges contradict each other and that is found.

    enough: once the bound is no higher than this it is the answer, though there may be a lower one
    """
    dictionary = _Dictionary(e, facts, ranges)
    while True:
        bound = dictionary.bound()
        if bound is not None and enough is not None and bound <= enough:
            return bound
        broken = dictionary.broken()
        if broken is None:
            return bound
        entering = dictionary.entering(*broken)
        if entering is None:
            if dictionary.is_contradicted(*broken):
                raise ContradictionError
            return bound
        dictionary.exchange(*broken, entering)


@dataclass(frozen=True)
class _Row:
    """`(constant + sum of coefficient * variable) / divisor`, with a positive divisor."""

    terms: Mapping[int, int]
    constant: int
    divisor: int = 1

    def solved(self, own: int, variable: int) -> _Row:
        """The row of one of its variables, where this is the row of `own`."""
        k = self.terms[variable]
        sign = 1 if k > 0 else -1
        terms = {v: -sign * c for v, c in self.terms.items() if v != variable}
        return _Row({**terms, own: sign * self.divisor}, -sign * self.constant, abs(k))

    def replaced(self, variable: int, row: _Row) -> _Row:
        """This row with another for a variable."""
        k = self.terms.get(variable)
        if k is None:
            return self
        terms = {v: c * row.divisor for v, c in self.terms.items() if v != variable}
        for v, c in row.terms.items():
            terms[v] = terms.get(v, 0) + k * c
        constant, divisor = self.constant * row.divisor + k * row.constant, self.divisor * row.divisor
        common = gcd(constant, divisor, *terms.values())
        return _Row({v: c // common for v, c in terms.items() if c}, constant // common, divisor // common)


class _Dictionary(Generic[K]):
    """The sum and some variables, the basic ones, as rows of the others, each of which is at one of its ends. A fact is
    a variable, too, from 0 on."""

    def __init__(self, e: Linear[K], facts: Sequence[Linear[K]], ranges: Mapping[K, Range]):
        numbers = {key: n for n, key in enumerate(ranges)}

        def row(linear: Linear[K]) -> _Row:
            return _Row({numbers[key]: k for key, k in linear.terms.items()}, linear.constant)

        self._ends: list[Range] = [*ranges.values(), *[(0, None)] * len(facts)]
        self._goal = row(e)
        self._rows = {len(ranges) + n: row(fact) for n, fact in enumerate(facts)}
        self._is_high = [self._begins_high(n) for n in range(len(self._ends))]

    def _begins_high(self, v: int) -> bool:
        """The end where the sum is larger; without a difference, one that the variable has."""
        k = self._goal.terms.get(v, 0)
        return k > 0 or (k == 0 and self._ends[v][0] is None)

    def bound(self) -> int | None:
        """What the sum is at most within the ranges of what it is a row of; None where such a range has no end."""
        most = self._most(self._goal, 1)
        return None if most is None else most // self._goal.divisor

    def broken(self) -> tuple[int, bool] | None:
        """A basic variable that is outside its range, and whether it is above."""
        for v in sorted(self._rows):
            row, (lo, hi) = self._rows[v], self._ends[v]
            value = self._numerator(row)
            if lo is not None and value < lo * row.divisor:
                return v, False
            if hi is not None and value > hi * row.divisor:
                return v, True
        return None

    def entering(self, basic: int, is_above: bool) -> int | None:
        """The variable that moves a basic one towards its range, for which the bound changes the least; None if all are
        at the ends where it is the nearest."""
        goal, best = self._goal.terms, None
        for v, k in sorted(self._rows[basic].terms.items()):
            if (k > 0) is not (self._is_high[v] is is_above) or self._ends[v][0] == self._ends[v][1] is not None:
                continue
            # |goal's coefficient / k| is the smallest.
            if best is None or abs(goal.get(v, 0) * best[1]) < abs(goal.get(best[0], 0) * k):
                best = v, k
        return None if best is None else best[0]

    def is_contradicted(self, basic: int, is_above: bool) -> bool:
        """Whether the basic variable is outside its range wherever the others are in theirs."""
        row, end, sign = self._rows[basic], self._ends[basic][is_above], -1 if is_above else 1
        most = self._most(row, sign)
        return most is not None and end is not None and most < sign * end * row.divisor

    def exchange(self, basic: int, is_above: bool, entering: int) -> None:
        """Makes a variable basic, for one that then is at an end of its range."""
        row = self._rows.pop(basic).solved(basic, entering)
        self._goal = self._goal.replaced(entering, row)
        self._rows = {v: other.replaced(entering, row) for v, other in self._rows.items()}
        self._rows[entering] = row
        self._is_high[basic] = is_above

    def _most(self, row: _Row, sign: int) -> int | None:
        """What the numerator of a row is at most, times a sign, within the ranges of its variables."""
        total = sign * row.constant
        for v, k in row.terms.items():
            end = self._ends[v][sign * k > 0]
            if end is None:
                return None
            total += sign * k * end
        return total

    def _numerator(self, row: _Row) -> int:
        return row.constant + sum(k * self._value(v) for v, k in row.terms.items())

    def _value(self, v: int) -> int:
        end = self._ends[v][self._is_high[v]]
        return end if end is not None else _FAR if self._is_high[v] else -_FAR


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
