"""Ranges under facts: sound for every value, and exact where kernels need it."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.index.algebra import Comparison
from treadle.index.bounds import facts_of, range_under
from treadle.index.expr import Expr, Range, const, is_empty, var

RANGES = {"b": (0, 3), "t": (0, 11), "k": (-2, 4)}
B, T, K = (var(name, *bounds) for name, bounds in RANGES.items())
POINTS = [dict(zip(RANGES, values, strict=True)) for values in product(*(range(a, z + 1) for a, z in RANGES.values()))]
SUMS = st.builds(
    lambda b, t, k, c: B * b + T * t + K * k + c,
    st.integers(-12, 12), st.integers(-3, 3), st.integers(-3, 3), st.integers(-20, 20),
)  # fmt: skip
EXPRESSIONS = st.one_of(
    SUMS,
    st.builds(lambda e, d, k: (e // d) * k, SUMS, st.sampled_from((2, 3, 4, 6)), st.integers(-4, 4)),
    st.builds(lambda e, f, d: e % d + f, SUMS, SUMS, st.sampled_from((2, 3, 4, 6))),
    st.builds(lambda d, e: T // d * 5 + T % (2 * d) + e, st.sampled_from((2, 3, 4)), SUMS),
    st.builds(lambda e, f, d, c: (e + f // d) // c, SUMS, SUMS, st.sampled_from((2, 3, 4)), st.sampled_from((2, 8))),
    st.builds(lambda e, k: B * T * k + T * K + e, SUMS, st.integers(-3, 3)),
)


@settings(max_examples=150)
@given(EXPRESSIONS, st.lists(EXPRESSIONS, max_size=3))
def test_every_value_is_in_the_range(e: Expr, facts: list[Expr]) -> None:
    lo, hi = range_under(e, facts)
    values = [e.evaluate(p) for p in POINTS if all(fact.evaluate(p) >= 0 for fact in facts)]
    assert all((lo is None or lo <= value) and (hi is None or value <= hi) for value in values)
    if values:
        low, high = range_under(e, facts, (min(values), max(values)))
        assert (low is None or low <= min(values)) and (high is None or max(values) <= high)


BLOCK, THREAD, STEP, LANE = var("block", 0, 9), var("thread", 0, 127), var("step", 0, 4), var("lane", 0, 3)


@pytest.mark.parametrize(
    ("e", "facts", "expected"),
    [
        pytest.param(THREAD + 64, [3 - THREAD // 16], (64, 127), id="a quotient bounds its dividend"),
        pytest.param(THREAD, [THREAD // 16 - 2], (32, 127), id="from below, too"),
        pytest.param(BLOCK * 128 + THREAD, [999 - BLOCK * 128 - THREAD], (0, 999), id="the border of a shape"),
        pytest.param(THREAD % 8 * 2 + LANE, [7 - THREAD % 8 * 2], (0, 9), id="facts are whole"),
        pytest.param(THREAD % 32, [3 - THREAD % 8], (0, 27), id="digits of a digit"),
        pytest.param(STEP * 64 + THREAD // 8 * 8, [18 - STEP * 8 - THREAD // 8], (0, 144), id="in other units"),
        pytest.param((BLOCK * 128 + THREAD) // 10, [999 - BLOCK * 128 - THREAD], (0, 99), id="inside a quotient"),
        pytest.param((BLOCK * 128 + THREAD) % 96, [95 - BLOCK * 128 - THREAD], (0, 95), id="inside a remainder"),
        pytest.param(
            BLOCK * 128 + THREAD - 1, [BLOCK * 128 + THREAD + (BLOCK * 128 + THREAD) % 12 - 1], (0, 1278),
            id="a digit of a sum",
        ),
        pytest.param(STEP + LANE, [1 - STEP, 1 - LANE], (0, 2), id="two facts"),
        pytest.param(THREAD * BLOCK, [63 - THREAD], (0, 63 * 9), id="a factor of a product"),
        pytest.param(THREAD // 8 * BLOCK, [63 - THREAD], (0, 7 * 9), id="a quotient that is a factor"),
        pytest.param(THREAD * BLOCK * STEP, [63 - THREAD, BLOCK - STEP * 2], (0, 63 * 9 * 4), id="of three"),
    ],
)  # fmt: skip
def test_ranges_that_kernels_need(e: Expr, facts: list[Expr], expected: Range) -> None:
    assert range_under(e, facts) == expected


def test_what_always_holds_is_no_fact() -> None:
    """Combinations are few: none of them is spent on what the ranges say anyway."""
    heavy, light = ([var(f"{name}{n}", 0, 3) for n in range(3)] for name in ("heavy", "light"))
    e = heavy[0] * 4000 + heavy[1] * 2000 + heavy[2] * 1000 + light[0] + light[1] * 8 + light[2] * 64 + STEP * 512
    always = [3 - v for v in heavy]
    assert range_under(e, [*always, *heavy, *(1 - v for v in light)]) == (0, 21000 + 1 + 8 + 64 + 4 * 512)


def test_facts_narrow_the_ranges_of_terms_that_none_cancels() -> None:
    """A convolution whose window is as wide as the image: `k // 3` is both indices of the window, of which the
    predicate has one, `k // 3 % 2`; the extent of k bounds the other, for which there is no fact left."""
    thread, block, step = var("thread", 0, 127), var("block", 0, 2), var("step", 0, 1)
    k, position = step * 8 + thread // 16, block * 8 + thread // 2 % 8
    e = position // 12 * 12 + k % 3 * 4 + k // 3 + position % 3
    facts = [11 - k, position // 3 % 4 - 1, 1 - position // 3 % 4, 1 - position % 3 - k // 3 % 2]
    assert range_under(e, facts, (0, 23)) == (0, 23)


def test_products_of_an_extent_are_bounded_together() -> None:
    """Rows from the last to the first, of an extent that changes: `(2 - row) * extent + column`."""
    extent, row, column = var("extent", 1, 9), var("row", 0, 5) % 3, var("column", 0, 15)
    assert range_under(extent * 2 - extent * row + column, [extent - 1 - column], (0, 26)) == (0, 26)


def test_as_many_facts_are_combined_as_a_window_has_borders() -> None:
    """A window of 3x2x2 over 5x5x2 elements with a border at two sides: each of their predicates bounds two light
    terms, beside heavier ones."""
    block, thread, k0, k1, k2 = (var(n, 0, e) for n, e in (("b", 1), ("t", 63), ("k0", 2), ("k1", 1), ("k2", 1)))
    place = block * 64 + thread
    row, column = place // 3 % 5 + k1 - 1, place % 3 + k2 - 1
    e = place // 45 * 50 + (place // 15 % 3 + k0) * 10 + row * 2 + column
    assert range_under(e, [89 - place, row, column, 1 - column], (0, 99)) == (0, 99)


def test_digits_of_a_difference() -> None:
    """A transposed convolution of stride 2: what is left of a place and a tap is even, and halved."""
    block, thread, tap = var("b", 0, 2), var("t", 0, 63), var("k", 0, 3)
    distance = thread // 4 - tap
    e = distance // 2 + block * 8
    assert range_under(e, [135 - thread - block * 64, -(distance % 2), e], (0, 16)) == (0, 16)
    whole = var("w", -7, 9)
    assert range_under(whole, [whole // 4 + 1, whole % 4 - 2]) == (-2, 7)
    assert range_under(whole, [-1 - whole // 4, 1 - whole % 4]) == (-7, -3)
    assert range_under(var("v", None, 9) % 4, [var("v", None, 9) - 8]) == (0, 1)


def test_facts_that_contradict_each_other_leave_nothing() -> None:
    assert is_empty(range_under(T + B, [T - 6, 5 - T]))
    assert is_empty(range_under(T + B, [T - B * 4, B * 4 - T - 1]))
    assert is_empty(range_under(K, [T % 2 - T // 4 - 2]))
    # For each value of b by itself: no multiple of 3 leaves these remainders.
    six = var("six", 0, 2) * 6
    assert is_empty(range_under(K, [six % 4 - 1, 1 - six % 4], (0, 0)))


def test_sums_of_one_variable_are_different_variables() -> None:
    """Both sums are divided; neither is the other, though the same variable is in both."""
    k, j = var("k", 0, 15), var("j", 0, 15)
    inner = k + j * 3
    assert range_under((k + inner // 4) // 8, [inner - 40]) == (1, 3)


def test_a_variable_without_bounds_is_bounded_by_facts() -> None:
    n = var("n", None, None)
    assert range_under(n, [n - 3, 8 - n]) == (3, 8)
    assert range_under(n, [n - 3]) == (3, None)
    assert range_under(n // 4, [n - 3, 8 - n]) == (0, 2)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("slt", [4 - T]), ("sle", [5 - T]), ("sgt", [T - 6]), ("sge", [T - 5]), ("eq", [T - 5, 5 - T]), ("ne", [])],
)
def test_what_a_comparison_says(kind: str, expected: list[Expr]) -> None:
    assert list(facts_of([Comparison(kind, T - 5)])) == expected
    never = facts_of([Comparison(kind, const(-5))])
    assert never == () if kind in ("slt", "sle", "ne") else any(fact.range()[1] == fact.constant < 0 for fact in never)
