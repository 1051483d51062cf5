"""The canonical form of index expressions: named rules, and evaluation as the law."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.index.algebra import alignment, always_less, split_linear
from treadle.index.expr import Expr, const, floordiv, mod, var

RANGES = {"t": (0, 127), "i": (0, 3), "j": (0, 11), "n": (1, 40), "s": (-9, 30)}
T, I4, J, N, S = (var(k, *r) for k, r in RANGES.items())
X = var("x", 0, None)


@pytest.mark.parametrize(
    ("simplified", "expected"),
    [
        ((X // 8) * 8 + X % 8, X),
        (X % 8 + (X // 8) * 8 + I4, X + I4),
        ((X // 12) * 12 + ((X // 4) % 3) * 4 + X % 4, X),
        (X % 4 + (X // 12) * 12 + ((X // 4) % 3) * 4, X),
        (((X // 4) % 3) * 4 + X % 4, X % 12),
        (((X % 12) // 4) * 4 + (X % 12) % 4, X % 12),
        (X - (X // 8) * 8, X % 8),
        ((X // 4) // 3, X // 12),
        ((X // 4 + 2) // 3, (X + 8) // 12),
        ((X % 12) // 4, (X // 4) % 3),
        ((X % 12) % 4, X % 4),
        (T % 128, T),
        (T // 128, const(0)),
        ((I4 * 16 + T // 8) // 16, I4),
        ((I4 * 16 + T // 8) % 16, T // 8),
        ((X * 8 + T % 8) // 32, X // 4),
        ((X * 8 + T % 8) % 32, (X % 4) * 8 + T % 8),
        ((X * 10) // 8 * 8 + (X * 10) % 8, X * 10),
        ((X * 16 + 5) // 8, X * 2),
        ((X * 16 + 5) % 8, const(5)),
        (N * (X // 8) * 8 + N * (X % 8), N * X),
        ((X + 3) // 8 * 8 + (X + 3) % 8, X + 3),
        ((99 - T) // 50 * 50 + (99 - T) % 50, 99 - T),
    ],
)
def test_rules(simplified: Expr, expected: Expr) -> None:
    assert simplified == expected
    assert hash(simplified) == hash(expected)


def test_nested_tile_address_recombines() -> None:
    """Splitting an index three ways and flattening it again gives it back, below a loop offset."""
    e = X * 96 + T
    a, b, c = e // 48, (e // 6) % 8, e % 6
    assert a * 48 + b * 6 + c == e


def test_ranges() -> None:
    assert (I4 * 16 + T // 8).range() == (0, 63)
    assert (X * 2 + 1).range() == (1, None)
    assert (-X).range() == (None, 0)
    assert (X - N).range() == (-40, None)
    assert ((X * N) % 7).range() == (0, 6)
    assert (X * S).range() == (None, None)
    assert (I4 * S).range() == (-27, 90)


def test_comparison() -> None:
    assert always_less(I4, 4) is True
    assert always_less(T, I4) is None
    assert always_less(T + 4, I4) is False
    assert always_less(X % 8, 8) is True
    assert always_less(X, X + 1) is True


def test_split_linear() -> None:
    assert split_linear(X * 4 + T * X + I4, "x") == (T + 4, I4)
    assert split_linear(I4 + 1, "x") == (const(0), I4 + 1)
    assert split_linear(X // 8 + X, "x") is None
    assert split_linear(X * X, "x") is None


def test_alignment() -> None:
    assert alignment(X * 8 + T * 12 + 4) == 4
    assert alignment(X) == 1
    assert alignment(const(0)) == 0


def test_substitute_and_vars() -> None:
    e = (X // 4) * 3 + X % 4
    assert e.substitute({"x": I4 * 4}) == I4 * 3
    assert {v.key for v in (e + T * N).vars()} == {"x", "t", "n"}


def test_constants_equal_integers() -> None:
    assert const(3) == 3
    assert hash(const(3)) == hash(3)
    assert (X - X).as_int() == 0
    assert str(X * 2 - 3) == "2 * x - 3"


@pytest.mark.parametrize("divisor", [0, -2])
def test_bad_divisor_is_named(divisor: int) -> None:
    with pytest.raises(ValueError, match=f"division by {divisor}: .* positive constant"):
        floordiv(X, divisor)
    with pytest.raises(ValueError, match="positive constant"):
        mod(X, divisor)


Tree = tuple[str, "Tree | str | int", "Tree | str | int"] | str | int


def trees() -> st.SearchStrategy[Tree]:
    """Unsimplified expressions: nested (operator, left, right); right of // and % is a constant."""
    divisors = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 50])
    leaves = st.one_of(st.sampled_from(sorted(RANGES)), st.integers(-20, 40))

    def grow(child: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        return st.one_of(
            st.tuples(st.sampled_from(["+", "-"]), child, child),
            st.tuples(st.just("*"), child, st.one_of(st.sampled_from([2, 3, 4, 8, 12, -1]), child)),
            st.tuples(st.sampled_from(["//", "%"]), child, divisors),
        )

    return st.recursive(leaves, grow, max_leaves=12)


def run(tree: Tree, values: dict[str, int]) -> int:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return values[tree]
    op, left, right = tree
    a, b = run(left, values), run(right, values)
    return {"+": a + b, "-": a - b, "*": a * b, "//": a // (b or 1), "%": a % (b or 1)}[op]


def simplify(tree: Tree) -> Expr:
    if isinstance(tree, int):
        return const(tree)
    if isinstance(tree, str):
        return var(tree, *RANGES[tree])
    op, left, right = tree
    a = simplify(left)
    if op in ("//", "%"):
        assert isinstance(right, int)
        return a // right if op == "//" else a % right
    b = simplify(right)
    return {"+": a + b, "-": a - b, "*": a * b}[op]


def values() -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries({k: st.integers(lo, hi) for k, (lo, hi) in RANGES.items()})


@settings(max_examples=600)
@given(trees(), st.lists(values(), min_size=1, max_size=8))
def test_simplified_value_is_the_value(tree: Tree, points: list[dict[str, int]]) -> None:
    e = simplify(tree)
    lo, hi = e.range()
    for point in points:
        value = run(tree, point)
        assert e.evaluate(point) == value
        assert lo is None or lo <= value
        assert hi is None or value <= hi
        if alignment(e):
            assert value % alignment(e) == 0


ADDRESSES = st.sampled_from(
    [
        X,
        X * 128 + T,
        X * 64 + I4 * 16 + T // 8,
        X * 64 + I4 * 32 + T // 8,
        X * 8 + T % 8,
        X * 3 + 1,
        X * 56 - 57,
    ]
)
RADICES = st.lists(st.sampled_from([2, 3, 4, 7, 8, 9, 28, 32]), min_size=1, max_size=4)


@settings(max_examples=300)
@given(ADDRESSES, RADICES, st.permutations(range(5)))
def test_digits_of_any_radix_recombine(e: Expr, radices: list[int], order: list[int]) -> None:
    """Splitting an address into digits and flattening it again, in any order of the sum, is the identity."""
    digits: list[Expr] = []
    weight, rest = 1, e
    for radix in radices:
        digits.append(rest % radix * weight)
        rest, weight = rest // radix, weight * radix
    digits.append(rest * weight)
    total = const(0)
    for k in order:
        total = total + (digits[k] if k < len(digits) else 0)
    assert total == e


@settings(max_examples=100)
@given(trees(), trees(), values())
def test_substitution_commutes_with_evaluation(tree: Tree, inner: Tree, point: dict[str, int]) -> None:
    """Substituting an expression for an unbounded variable, then evaluating, is evaluating twice."""
    replaced = simplify(inner)
    free = simplify(tree).substitute({"t": var("u", None, None)})
    direct = free.evaluate({**point, "u": replaced.evaluate(point)})
    assert free.substitute({"u": replaced}).evaluate(point) == direct
