"""Greedy construction: tiles only grow, from the registers outward, and fit; the same each time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.schedules.search.test_walk import CPU, product, threads
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.rules.programs import programs
from treadle.schedules.rules.tiling import default_rules
from treadle.schedules.search.candidate import Task
from treadle.schedules.search.greedy import Greedy, reuse_for_footprint
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.strategy import Explored
from treadle.schedules.search.walk import Etir


def greedy(task: Task) -> Greedy:
    return Greedy(Explored(task), Forecast(task), "0")


def view(footprint: int, traffic: int) -> Etir:
    return Etir(((1,),), (1,), (footprint,), (traffic,))


@pytest.mark.parametrize(("footprint", "traffic", "score"), [(20, 70, 3.0), (10, 70, 30.0), (15, 110, -2.0)])
def test_what_a_growth_saves_for_the_memory_that_it_takes(footprint: int, traffic: int, score: float) -> None:
    assert reuse_for_footprint(view(10, 100), view(footprint, traffic), 0) == score


def test_tiles_grow_from_the_registers_outward() -> None:
    """Of the program of `test_walk.py`: registers, whose square has most reuse, then threads; no virtual threads."""
    task, _ = threads()
    path = greedy(task).path("p")
    taken = [each.decisions for each in path]
    assert taken[0] == {"registers": (1, 1), "threads": (2, 16), "virtual": (1, 1), "depth": (8,)}
    order = [label for one, other in pairwise(taken) for label in one if one[label] != other[label]]
    assert order == sorted(order, key=["registers", "threads"].index)
    assert taken[-1]["registers"] == (8, 8)
    assert {each["virtual"] for each in taken} == {(1, 1)}


def test_the_best_end_is_proposed_first_and_everything_once() -> None:
    anchor = anchor_of(product(512, 64, 512))
    task = Task(anchor, CPU, tuple(programs(anchor, CPU, default_rules(CPU))))
    search, forecast = greedy(task), Forecast(task)
    first, *rest = search.propose(8)
    others = search.propose(1000)
    assert search.propose(8) == []
    found = [first, *rest, *others]
    kernels = [task.replay(each) for each in found]
    assert len(set(kernels)) == len(kernels)
    ends = [path[-1] for name in task.by_name if (path := greedy(task).path(name))]
    assert {each.program for each in ends} == {name for name, each in task.by_name.items() if each.template is None}
    assert forecast.seconds(first) == min(map(forecast.seconds, ends))
    starts = [path[0] for name in task.by_name if (path := greedy(task).path(name))]
    assert forecast.seconds(first) < min(map(forecast.seconds, starts))
    assert [*greedy(task).propose(8)] == [first, *rest]
