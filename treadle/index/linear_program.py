"""The largest value of a sum under linear facts and within the range of each variable: an exact linear program.

This is the dual simplex method for variables with two ends. It starts with every variable at the end where the sum is
the largest, which bounds the sum whatever the facts say. Each step then moves to the border of one fact that does not
hold there; it leaves a bound that is no higher than the one before, so that the method may end early.

Source: C. E. Lemke, "The dual method of solving the linear programming problem", Naval Research Logistics Quarterly 1
(1954); with dictionaries and two ends as V. Chvatal, "Linear Programming" (1983), chapters 2, 8 and 10. Of several
steps the one that R. G. Bland chooses, "New finite pivoting rules for the simplex method" (1977): the method ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Generic, TypeVar

from treadle.index.ranges import Range

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


__all__ = ["ContradictionError", "Linear", "maximum"]
