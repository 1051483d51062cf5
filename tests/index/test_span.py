"""Bounds of expressions over some of their variables."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.index.algebra import span_of
from treadle.index.expr import Expr, Var, const, floordiv, mod, var

RANGES = {"x": (0, 5), "y": (-3, 2), "r": (0, 4), "t": (1, 3)}
VARIABLES = [var(name, *bounds) for name, bounds in RANGES.items()]
X, Y, R, T = VARIABLES


def is_inner(v: Var) -> bool:
    return v.key in ("r", "t")


def combined(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """Sums, products, quotients and remainders."""
    divisors = st.integers(1, 9)
    return st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, k: a * k, inner, st.integers(-3, 7)),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(floordiv, inner, divisors),
        st.builds(mod, inner, divisors),
    )


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.one_of(st.sampled_from(VARIABLES), st.integers(-9, 9).map(const)), combined, max_leaves=6))
def test_values_are_inside(e: Expr):
    found = span_of(e, is_inner)
    assert found is not None
    assert not any(is_inner(v) for each in (found.lower, found.upper) for v in each.vars())
    for values in product(*(range(lo, hi + 1) for lo, hi in RANGES.values())):
        at = dict(zip(RANGES, values, strict=True))
        lower, upper = found.lower.evaluate(at), found.upper.evaluate(at)
        assert lower <= e.evaluate(at) <= upper
        assert upper - lower <= found.width


def test_a_tile_needs_a_limit_just_where_one_of_its_elements_does():
    """Also where a tile of 5 lies across the end of a row of 12."""
    position = var("tile", 0, 30) * 5 + R
    found = span_of(position % 12, is_inner)
    assert found is not None
    for tile, limit in product(range(31), range(1, 13)):
        needed = any((tile * 5 + r) % 12 < limit for r in range(5))
        assert (found.lower.evaluate({"tile": tile}) < limit) == needed


def test_tiles_that_divide_rows_have_exact_bounds():
    tile = var("tile", 0, 30)
    found = span_of((tile * 5 + R) % 20, is_inner)
    assert found is not None
    assert found.lower == tile % 4 * 5
    assert found.upper == tile % 4 * 5 + 4
    quotient = span_of((tile * 5 + R) // 20, is_inner)
    assert quotient is not None
    assert quotient.lower == quotient.upper == tile // 4


def test_nothing_is_known_of_unbounded_variables():
    free = var("r", None, None)
    assert span_of(X + free, is_inner) is None
    assert span_of(X + free // 4, is_inner) is None
    found = span_of(X + free % 4, is_inner)
    assert found is not None
    assert (found.lower, found.upper) == (X, X + 3)
