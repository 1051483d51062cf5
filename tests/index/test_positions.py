"""Positions are the numbers that their arithmetic says; digits are split where divisions need it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from treadle.index.expr import var
from treadle.index.positions import Position, Variable, position_of, row_major

Values = Mapping[Variable, int]
Exact = Callable[[Values], int]
SIZES = (2, 3, 4, 6, 7, 8, 12, 16)


def expression(draw: random.Random, variables: list[Variable], depth: int) -> tuple[Position, Exact]:
    """A random position, and what it is by definition."""
    if depth == 0:
        variable = draw.choice(variables)
        return variable.position(), lambda values: values[variable]
    inner, of = expression(draw, variables, depth - 1)
    k = draw.choice([2, 3, 4, 8, 16])
    other, of_other = expression(draw, variables, depth - 1)
    found: list[tuple[Position, Exact]] = [
        (inner // k, lambda values: of(values) // k),
        (inner % k, lambda values: of(values) % k),
        (inner * k + other, lambda values: of(values) * k + of_other(values)),
        (inner + k, lambda values: of(values) + k),
        (k - inner, lambda values: k - of(values)),
    ]
    return draw.choice(found)


@pytest.mark.parametrize("seed", range(400))
def test_random_expressions(seed: int) -> None:
    draw = random.Random(seed)
    variables = [Variable(name, draw.choice(SIZES)) for name in "abc"]
    found = [expression(draw, variables, draw.randrange(1, 5)) for _ in range(3)]
    for position, exact in found:
        lo, hi = position.bounds
        for _ in range(8):
            values = {variable: draw.randrange(variable.size) for variable in variables}
            assert position.at(values) == position.renewed().at(values) == exact(values), (position, values)
            assert lo <= exact(values) <= hi


def test_a_division_splits_a_digit() -> None:
    t = Variable("t", 128)
    quotient, rest = t.position() // 8, t.position() % 8
    assert [digit.size for digit in t.digits()] == [8, 16]
    low, high = t.digits()
    assert (quotient.terms, rest.terms) == ({high: 1}, {low: 1})
    assert (quotient * 8 + rest).terms == t.position().terms
    assert [t.position().stride(digit) for digit in (low, high)] == [1, 8]


def test_what_is_carried_is_no_sum_of_digits() -> None:
    t = Variable("t", 128).position()
    quotient, rest = (t + 3) // 8, (t + 3) % 8
    assert not quotient.is_linear
    assert not rest.is_linear
    assert (quotient * 8 + rest - 3 - t).as_int == 0


def test_steps_of_a_quotient() -> None:
    """Panels of three vectors, of which each block begins at another one: two steps inside, then one to the next."""
    vector, block = Variable("vector", 4), Variable("block", 8)
    column = block.position() * 4 + vector.position()
    place = column // 3 * 100 + column % 3
    assert place.steps(vector.digits()) == [(3, 1), (2, 100)]


def test_digits_that_move_a_position_as_one_are_one_step() -> None:
    """A variable of 10 values, which another position splits at 4."""
    i = Variable("i", 10)
    rows = i.position() // 4
    assert [digit.size for digit in i.digits()] == [4, 3]
    assert (i.position() * 8 + 5).steps(i.digits()) == [(10, 8)]
    assert (rows * 100).steps(i.digits()) == [(4, 0), (3, 100)]
    assert (i.position() * 8 + rows * 100).steps(i.digits()) == [(4, 8), (3, 132)]


@pytest.mark.parametrize("sign", [1, -1])
def test_bounds_of_a_split_variable_are_its_own(sign: int) -> None:
    """The highest of 12 values' digits of 5 has 3 values, of which the last one has only two lower ones."""
    i = Variable("i", 12)
    rows = i.position() // 5
    assert rows.bounds == (0, 2)
    assert (i.position() * sign).bounds == ((0, 11) if sign > 0 else (-11, 0))
    assert (rows * sign + 1).bounds == ((1, 3) if sign > 0 else (-1, 1))
    assert (i.position() * 2 + rows * 100).bounds == (0, 228)


def test_a_size_that_is_known_later() -> None:
    block = Variable("block", 1 << 40)
    quotient = block.position() // 12
    block.fix(24)
    assert quotient.bounds == (0, 1)
    assert [digit.size for digit in block.digits()] == [12, 2]


def test_expressions_of_indices() -> None:
    i, j = Variable("i", 8), Variable("j", 12)
    e = (var("i", 0, 7) * 12 + var("j", 0, 11)) // 4
    found = position_of(e, {"i": i.position(), "j": j.position()})
    assert all(found.at({i: a, j: b}) == (a * 12 + b) // 4 for a in range(8) for b in range(12))
    assert row_major([i.position(), j.position()], (8, 12)).at({i: 3, j: 5}) == 41
