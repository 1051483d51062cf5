"""The divisors of quotients and remainders of variables."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from treadle.index.algebra import divisor_chain, divisors_of
from treadle.index.expr import var

X, Y = var("x", 0, 999), var("y", 0, 99)


@given(divisors=st.sets(st.integers(1, 40)))
def test_divisor_chains_divide(divisors: set[int]) -> None:
    chain = [1, *divisor_chain(divisors)]
    assert all(b % a == 0 and b > a for a, b in pairwise(chain))
    assert set(chain[1:]) <= divisors


def test_the_longest_chain_wins() -> None:
    assert divisor_chain({2, 3, 9, 5}) == (3, 9)


def test_divisors_of_quotients_and_remainders_of_a_variable() -> None:
    assert divisors_of([X // 8 + Y, (X // 4) % 5 + Y % 7]) == {"x": {8, 4, 20}, "y": {7}}


def test_those_of_a_sum_do_not_count() -> None:
    assert divisors_of([(X + Y) // 8]) == {}
