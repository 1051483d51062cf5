"""Decisions of programs: all of them by brute force, alike when drawn, and neighbours of each other both ways."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod
from random import Random

import pytest
from hypothesis import given, strategies
from xdsl.parser import Parser

from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, ProgramOp
from treadle.schedules.search.sampler import Sampler, Support

PROGRAM = """
schedule.program @p for "cpu" {{
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %a = schedule.sample_tile "outer" 2 from {outer} product {low} to {high}
  %b = schedule.sample_tile "inner" 1 from [1, 2, 3] divisors of %k beside (%a#0) product 1 to {most} step {step}
  %c = schedule.sample "pack" from [true, false]
  %i0, %i1 = schedule.split %i by (%a#0)
  %j0, %j1 = schedule.split %j by (%a#1)
  %k0, %k1 = schedule.split %k by (%b)
  schedule.arrange block(%i0, %j0) loop(%k0) loop(%k1) repeat(%i1, %j1)
}}
"""


def program(outer: list[int], low: int, high: int, most: int, step: int) -> ProgramOp:
    text = PROGRAM.format(outer=outer, low=low, high=high, most=most, step=step).replace("%a =", "%a0, %a1 =")
    (found,) = Parser(treadle_context(), text.replace("%a#", "%a")).parse_module().body.block.ops
    assert isinstance(found, ProgramOp)
    return found


SIZES = strategies.lists(strategies.integers(1, 9), min_size=1, max_size=5, unique=True)


@given(
    SIZES, strategies.integers(1, 12), strategies.integers(0, 40), strategies.integers(1, 40), strategies.integers(1, 3)
)
def test_all_decisions_are_those_of_brute_force(outer: list[int], low: int, more: int, most: int, step: int) -> None:
    extent, high = 12, low + more
    try:
        sampler = Sampler(made := program(outer, low, high, most, step), (10, 10, extent))
        made.verify()
    except Exception as error:  # the first sample has an empty support
        assert "no factors whose product" in str(error)
        return
    inner = sorted({1, 2, 3, *(d for d in range(1, extent + 1) if extent % d == 0)})
    expected = [
        {"outer": tile, "inner": (depth,), "pack": pack}
        for tile in product(sorted(outer), repeat=2)
        if low <= prod(tile) <= high
        for depth in inner
        if depth * tile[0] <= most and depth * tile[0] % step == 0
        for pack in (True, False)
    ]
    assert list(sampler.enumerate()) == expected


def test_draws_are_uniform() -> None:
    """Of 2000 draws of 20 values each comes 100 times; chi squared of 19 degrees exceeds 43.8 once in a thousand."""
    values = [(a, b) for a in (1, 2, 4, 8) for b in (1, 2, 3, 5, 7)]
    support, random = Support(values), Random("a")
    counts = Counter(support.draw(random) for _ in range(2000))
    assert set(counts) == set(values)
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 43.8


def test_weights_are_respected() -> None:
    support, random = Support((True, False), (3.0, 1.0)), Random("a")
    drawn = sum(bool(support.draw(random)) for _ in range(1000))
    assert 700 < drawn < 800
    assert not any(Support((1, 2, 3), (1.0, 0.0, 1.0)).draw(random) == 2 for _ in range(100))


@given(SIZES, strategies.integers(1, 3), strategies.integers(1, 200), strategies.integers(1, 4))
def test_neighbours_are_symmetric(sizes: list[int], count: int, most: int, step: int) -> None:
    tiles = [tile for tile in product(sorted(sizes), repeat=count) if prod(tile) <= most and prod(tile) % step == 0]
    support = Support(tiles)
    for tile in tiles:
        near = support.neighbours(tile)
        assert tile not in near
        assert len(set(near)) == len(near)
        assert all(each in support and tile in support.neighbours(each) for each in near)


@pytest.mark.parametrize("exactly", [False, True])
def test_tiles_of_divisors_are_connected(exactly: bool) -> None:
    """From each tile every other one is reached, also where their product is fixed."""
    divisors = [d for d in range(1, 61) if 60 % d == 0]
    tiles = [t for t in product(divisors, repeat=3) if (prod(t) == 60 if exactly else prod(t) <= 60)]
    support = Support(tiles)
    seen: set[Choice] = {tiles[0]}
    todo: list[Choice] = [tiles[0]]
    while todo:
        new = [each for each in support.neighbours(todo.pop()) if each not in seen]
        seen.update(new)
        todo += new
    assert len(seen) == len(tiles)


@pytest.mark.parametrize(
    ("values", "of", "near"),
    [
        ((1, 2, 8, 4), 4, [2, 8]),
        (("m", "n", "k"), "n", ["m", "k"]),
        ((True, False), True, [False]),
        (((64, 64), (128, 128), (64, 128)), (64, 64), [(64, 128), (128, 128)]),
    ],
)
def test_neighbours(values: tuple[Choice, ...], of: Choice, near: list[Choice]) -> None:
    assert Support(values, chained=True).neighbours(of) == near


def test_a_switch_is_no_number() -> None:
    assert True not in Support((1, 2))
    assert 1 not in Support((True, False))
    assert 2 in Support((1, 2))


def test_neighbours_of_decisions_are_symmetric() -> None:
    sampler = Sampler(program([1, 2, 3, 4], 1, 12, 12, 1), (10, 10, 12))
    every = list(sampler.enumerate())
    near = {str(each): [str(other) for other in sampler.neighbours(each)] for each in every}
    assert all(each in near[other] for each, others in near.items() for other in others)
    assert set(near) >= {other for others in near.values() for other in others}


def test_a_mutation_changes_one_sample_and_what_depends_on_it() -> None:
    sampler, random = Sampler(program([1, 2, 4, 8], 1, 32, 12, 1), (10, 10, 12)), Random("a")
    every = [str(each) for each in sampler.enumerate()]
    decisions, changed = sampler.draw(random), Counter[tuple[str, ...]]()
    for _ in range(300):
        assert decisions is not None
        child = sampler.mutated(decisions, random)
        assert child is not None
        assert str(child) in every
        different = tuple(label for label in sampler.labels if child[label] != decisions[label])
        assert different in (("outer",), ("inner",), ("pack",), ("outer", "inner"))
        changed[different] += 1
        decisions = child
    assert len(changed) == 4


def test_nothing_to_change_or_to_draw() -> None:
    fixed = Parser(
        treadle_context(),
        PROGRAM.format(outer=[2], low=4, high=4, most=2, step=2)
        .replace("%a =", "%a0, %a1 =")
        .replace("%a#", "%a")
        .replace("[true, false]", "[true]"),
    )
    (only,) = fixed.parse_module().body.block.ops
    assert isinstance(only, ProgramOp)
    sampler, random = Sampler(only, (10, 10, 1)), Random("a")
    assert sampler.draw(random) == {"outer": (2, 2), "inner": (1,), "pack": True}
    assert sampler.mutated({"outer": (2, 2), "inner": (1,), "pack": True}, random) is None
    empty = Sampler(program([4], 16, 16, 3, 1), (10, 10, 1))
    assert empty.draw(random) is None
    assert list(empty.enumerate()) == []
