"""Sides that are measured in turn: each follows each other one equally often."""

import itertools
from collections import Counter
from itertools import pairwise

import pytest

from treadle.bench.interleave import Latency, Run, Timed, balanced_orders, interleave, latency_of


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


def test_percentiles_are_those_of_single_calls() -> None:
    """One call in ten is slow, which the mean of a batch of ten would never show."""
    now = itertools.count(0.0)
    latency = latency_of([1.0] * 90 + [5.0] * 9 + [100.0])
    assert (latency.p50, latency.p90, latency.calls) == (1.0, pytest.approx(1.4), 100)
    assert latency.p99 == pytest.approx(5.95)
    assert latency_of([2.0]) == Latency(2.0, 2.0, 2.0, 1)
    run = Timed(
        lambda: next(now), lambda: next(now)
    )  # the first reading, the call and the second one are three numbers
    run(4)
    assert list(run.seconds) == [2.0] * 4
    assert run.latency(3).calls == 3
