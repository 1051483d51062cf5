"""Comparisons of indices: their one form, and what ranges say of them."""

from __future__ import annotations

import operator
from itertools import combinations_with_replacement

import pytest

from treadle.index.algebra import Comparison, comparisons_of, truth_of
from treadle.index.expr import Expr, const, var

COMPARE = {
    "slt": operator.lt, "sle": operator.le, "sgt": operator.gt,
    "sge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


@pytest.mark.parametrize("kind", COMPARE)
def test_truth_is_what_all_values_agree_on(kind: str) -> None:
    for lo, hi in combinations_with_replacement(range(-3, 4), 2):
        truths = {COMPARE[kind](value, 0) for value in range(lo, hi + 1)}
        found = Comparison(kind, var("i", lo, hi)).truth()
        assert found == (truths.pop() if len(truths) == 1 else None), (lo, hi)


def test_nothing_is_said_of_what_has_no_bounds() -> None:
    for kind in COMPARE:
        assert Comparison(kind, var("i", None, None)).truth() is None


N, S, FREE = var("i", 0, 9), var("s", -5, 5), var("u", None, None)


@pytest.mark.parametrize(
    ("lhs", "rhs", "expected"),
    [
        (N, const(4), (Comparison("slt", N - 4),)),
        (S, const(4), (Comparison("sge", S), Comparison("slt", S - 4))),
        (N, FREE, None),
    ],
)
def test_unsigned_comparisons_have_a_signed_form_where_the_right_side_is_natural(
    lhs: Expr, rhs: Expr, expected: tuple[Comparison, ...] | None
) -> None:
    assert comparisons_of("ult", lhs, rhs) == expected


def test_unsigned_comparison_with_a_negative_left_side_is_false() -> None:
    """-1 is the largest unsigned number."""
    assert truth_of(comparisons_of("ult", const(-1), const(4))) is False
    assert comparisons_of("ugt", const(-1), FREE) is None
    assert truth_of(None) is None
