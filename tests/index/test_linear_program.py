"""The exact maximum of linear programs, against the maximum over all vertices."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.index.bounds import ContradictionError, Linear, maximum
from treadle.index.expr import Range

NAMES = "xyz"
Terms = tuple[int, ...]
COEFFICIENTS = st.tuples(*[st.integers(-4, 4)] * len(NAMES))
SUMS = st.tuples(COEFFICIENTS, st.integers(-12, 12))
RANGES = st.tuples(*[st.tuples(st.integers(-4, 2), st.integers(0, 6)).map(lambda r: (r[0], r[0] + r[1]))] * len(NAMES))


def linear(terms: Terms, constant: int) -> Linear[str]:
    return Linear({name: k for name, k in zip(NAMES, terms, strict=True) if k}, constant)


def solved(rows: Sequence[tuple[Terms, int]]) -> list[Fraction] | None:
    """Where the sums are all 0, by Cramer's rule; None where that is no single point."""
    matrix = np.array([terms for terms, _ in rows])

    def determinant(column: int | None) -> int:
        m = matrix.copy()
        if column is not None:
            m[:, column] = [-constant for _, constant in rows]
        return int(np.dot(m[0], np.cross(m[1], m[2])))

    whole = determinant(None)
    return [Fraction(determinant(n), whole) for n in range(len(NAMES))] if whole else None


def at(row: tuple[Terms, int], point: Sequence[Fraction]) -> Fraction:
    return sum((k * x for k, x in zip(row[0], point, strict=True)), Fraction(row[1]))


def over_vertices(e: tuple[Terms, int], facts: Sequence[tuple[Terms, int]]) -> Fraction | None:
    """The maximum over the points where three facts are 0 and none is negative; None if there is none."""
    points = [solved(rows) for rows in combinations(facts, len(NAMES))]
    return max((at(e, p) for p in points if p is not None and all(at(f, p) >= 0 for f in facts)), default=None)


@settings(max_examples=200)
@given(SUMS, st.lists(SUMS, max_size=4), RANGES)
def test_the_bound_is_the_maximum_rounded_down(
    e: tuple[Terms, int], facts: list[tuple[Terms, int]], ranges: tuple[tuple[int, int], ...]
) -> None:
    units = [tuple(int(n == m) for m in range(len(NAMES))) for n in range(len(NAMES))]
    ends = [fact for unit, (lo, hi) in zip(units, ranges, strict=True)
            for fact in ((unit, -lo), (tuple(-k for k in unit), hi))]  # fmt: skip
    expected = over_vertices(e, [*facts, *ends])
    given_ranges: dict[str, Range] = dict(zip(NAMES, ranges, strict=True))
    program = linear(*e), [linear(*fact) for fact in facts], given_ranges
    if expected is None:
        with pytest.raises(ContradictionError):
            maximum(*program)
        return
    assert maximum(*program) == floor(expected)
    bound = maximum(*program, enough=floor(expected) + 3)
    assert bound is not None and floor(expected) <= bound


def test_many_light_facts_are_combined() -> None:
    """As many as there are terms, beside heavier terms that none of them is about."""
    light, heavy = ([f"{kind}{n}" for n in range(9)] for kind in ("light", "heavy"))
    e = Linear({**{name: -1 for name in light}, **{name: -9 for name in heavy}}, 0)
    facts = [Linear({name: 1, "shared": -1}, 0) for name in light]
    ranges: dict[str, Range] = {**dict.fromkeys((*light, *heavy), (0, 7)), "shared": (2, 2)}
    assert maximum(e, facts, ranges) == -18


UNBOUNDED: dict[str, tuple[dict[str, int], list[dict[str, int]], int | None]] = {
    "without facts": ({"n": 1}, [], None),
    "facts of other variables": ({"n": 1}, [{"m": -1, "": 5}], None),
    "one fact": ({"n": 2}, [{"n": -1, "": 5}], 10),
    "two that bound each other": ({"n": 1, "m": 1}, [{"n": -1, "m": 1}, {"m": -1, "n": -1, "": 7}], 7),
    "bounded together only": ({"n": 1, "m": -1}, [{"n": -1, "m": 1, "": 3}], 3),
    "bounded below only": ({"n": 1}, [{"n": 1, "": 3}], None),
    "not what is asked": ({"m": 1}, [{"m": -1, "": 4}, {"n": 1, "": -3}], 4),
}  # fmt: skip


@pytest.mark.parametrize("case", UNBOUNDED)
def test_variables_without_ends(case: str) -> None:
    e, facts, expected = UNBOUNDED[case]
    ranges: dict[str, Range] = dict.fromkeys("nm", (None, None))
    assert maximum(_named(e), [_named(fact) for fact in facts], ranges) == expected


def test_facts_that_contradict_each_other_without_ranges() -> None:
    ranges: dict[str, Range] = {"n": (None, None)}
    with pytest.raises(ContradictionError):
        maximum(_named({"n": 1}), [_named({"n": 1, "": -4}), _named({"n": -1, "": 3})], ranges)
    with pytest.raises(ContradictionError):
        maximum(_named({"n": 1}), [_named({"": -1})], {"n": (0, 3)})


def _named(terms: dict[str, int]) -> Linear[str]:
    return Linear({name: k for name, k in terms.items() if name}, terms.get("", 0))
