"""Sides that are measured in turn: each follows each other one equally often."""

from collections import Counter
from itertools import pairwise

import pytest

from treadle.bench.interleave import Run, balanced_orders, interleave


@pytest.mark.parametrize("count", range(1, 7))
def test_orders_are_balanced(count: int) -> None:
    """Places, and who stands behind whom."""
    sides = "abcdef"[:count]
    orders = balanced_orders(sides)
    assert all(sorted(order) == list(sides) for order in orders)
    places = Counter((place, side) for order in orders for place, side in enumerate(order))
    behind = Counter(pair for order in orders for pair in pairwise(order))
    assert len(places) == count * count
    assert len(behind) == count * (count - 1)
    assert len(set(places.values())) == 1
    assert len(set(behind.values())) <= 1


def test_a_side_that_slows_its_follower_slows_all_alike() -> None:
    """By a clock that tells 1 for a run, and 2 for one behind another side's `spins`."""
    now, last = 0.0, ""

    def side(name: str) -> Run:
        def run(count: int) -> None:
            nonlocal now, last
            now += count * (2.0 if last == "spins" and name != "spins" else 1.0)
            last = name

        return run

    sides = {name: side(name) for name in ("a", "b", "spins")}
    times = interleave(sides, 6, 1.0, lambda: now)
    assert sorted(times["a"].seconds) == sorted(times["b"].seconds)
