"""The Markov chain of a program on all of its states: what it says is what walks do, and what enumeration finds."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from tests.schedules.nest.test_nest import program
from tests.schedules.search.test_walk import CPU, product
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.state_graph import StateGraph, state_graph
from treadle.schedules.search.strategy import Explored
from treadle.schedules.search.walk import Walk, WalkSettings

SMALL = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%dk = schedule.sample_tile "depth" 1 from [4, 8, 16] product 1 to 64
%ri, %rj = schedule.sample_tile "registers" 2 from ([1, 2, 4, 8], [8, 16]) product 1 to 64
%i0, %i1 = schedule.split %i by (%ri)
%j0, %j1 = schedule.split %j by (%rj)
%k0, %k1 = schedule.split %k by (%dk)
schedule.arrange block(%i0, %j0) loop(%k0) loop(%k1) repeat(%i1, %j1)
schedule.mark vector %j1
"""
"""Depths of 3 kinds, then 7 register tiles: 21 candidates at two levels."""
START = Candidate("p", {"depth": (4,), "registers": (1, 8)})


def small(settings: WalkSettings | None = None) -> tuple[Walk, Task]:
    task = Task(anchor_of(product(48, 64, 64)), CPU, (program(SMALL),))
    return Walk(Explored(task), Forecast(task), "0", settings), task


def graph(settings: WalkSettings | None = None) -> StateGraph:
    walk, _ = small(settings)
    return state_graph(walk, "p")


def test_all_legal_states_and_what_leads_from_one_to_another() -> None:
    """The three depths are a line of two actions each way; the tiles of 4 x 2 without the largest have 8."""
    found = graph()
    assert Counter(level for _, level in found.states) == {0: 21, 1: 21}
    assert np.count_nonzero(found.caches) == 21
    kinds = Counter(
        (found.states[source][1], bool(cache)) for source, cache in zip(found.sources, found.caches, strict=True)
    )
    assert kinds == {(0, True): 21, (0, False): 7 * 4, (1, False): 3 * 2 * 8}


@pytest.mark.parametrize("benefits", ["model", "paper"])
def test_rows_of_the_matrix_add_up_to_1(benefits: str) -> None:
    found = graph(WalkSettings(benefits="paper" if benefits == "paper" else "model"))
    for step in (0, 10, 99):
        rows = np.bincount(found.sources, found.transitions(step))
        assert rows == pytest.approx(np.ones(42))


def test_walks_end_where_the_chain_says() -> None:
    """The distribution after the steps of 2000 walks, without its smallest entries."""
    settings = WalkSettings(threshold=2.0**-12)
    walk, _ = small(settings)
    found = state_graph(walk, "p")
    ends = Counter[tuple[Candidate, int]]()
    for n in range(2000):
        steps = walk.walk("p", Random(n), START)
        assert len(steps) == 12
        ends[steps[-1].candidate, steps[-1].level] += 1
    expected = found.after(found.at(START), steps=12)
    assert expected.sum() == pytest.approx(1)
    seen = np.array([ends[state] / 2000 for state in found.states])
    assert np.abs(seen - expected).max() < 0.035  # three standard errors of a half


def test_what_a_walk_has_met_stays_met() -> None:
    found = graph()
    good = found.seconds == found.optimum
    met = [found.after(found.at(START), steps, good)[good].sum() for steps in (0, 1, 5, 20, 100)]
    assert met == sorted(met)
    assert met[0] == 0.0
    assert found.after(found.at(START))[good].sum() <= met[-1]


@pytest.mark.parametrize("step", [0, 3])
def test_the_stationary_distribution_is_that_of_the_formula(step: int) -> None:
    """Of one class of the last level, where the weight of an action from i to j is as 1 / seconds of j: the chain is
    reversible, and a state's share is as the sum over its neighbours of 1 / (seconds of both), to a power."""
    found = graph()
    (members,) = [each for each in found.classes if found.numbers[START, 1] in each]
    assert len(members) == 7
    begin = np.zeros(42)
    begin[found.numbers[START, 1]] = 1.0
    share = found.stationary(begin, step)
    inside = np.isin(found.sources, members)
    conductance = (1 / (found.seconds[found.sources] * found.seconds[found.targets])) ** (1 + step)
    weights = np.bincount(found.sources[inside], conductance[inside], minlength=42)
    assert share == pytest.approx(weights / weights.sum(), abs=1e-6)
    moved = np.bincount(found.targets, share[found.sources] * found.transitions(step), minlength=42)
    assert moved == pytest.approx(share, abs=1e-6)


def test_without_a_lazy_step_a_grid_of_tiles_has_period_2() -> None:
    """An action changes one factor by one size, so that a walk returns after an even number of steps: a class of a
    level is irreducible, and not aperiodic."""
    found = graph()
    assert [len(each) for each in found.classes] == [3] * 7 + [7] * 3
    assert {found.period(each) for each in found.classes} == {2}


def test_value_iteration_finds_the_optimum_that_walks_look_for() -> None:
    """Payoffs are throughput over throughput: of each state of the first level, that of the best of all; of the last
    one, that of its depth's best."""
    found = graph()
    payoffs, iterations = found.values()
    assert iterations < 42
    reached = found.seconds / payoffs
    assert reached[:21] == pytest.approx(np.full(21, found.optimum))
    for number, (candidate, level) in enumerate(found.states):
        if level == 1:
            same = [
                found.seconds[n]
                for n, (c, _) in enumerate(found.states)
                if c.decisions["depth"] == candidate.decisions["depth"]
            ]
            assert reached[number] == pytest.approx(min(same))
    walk, task = small(WalkSettings(states=42))
    assert Forecast(task).seconds(walk.propose(1)[0]) == found.optimum


def test_printed_values_fall_to_nothing() -> None:
    """Equation (6) multiplies probabilities; the paper says that it never falls."""
    found = graph()
    values = [found.printed_values(iterations).max() for iterations in (0, 1, 10, 100)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 1
    assert values[-1] < 1e-6


def test_what_has_no_graph() -> None:
    walk, _ = small()
    with pytest.raises(TreadleError, match=r"program @p has 21 decisions and 2 levels of tiles; accepted: up to 20"):
        state_graph(walk, "p", most=20)
    other = Candidate("p", {"depth": (4,), "registers": (3, 8)})
    with pytest.raises(TreadleError, match=r"registers = \[3, 8\]\} is no state; accepted: a legal candidate"):
        graph().at(other)
    with pytest.raises(TreadleError, match="no stationary distribution after 2 iterations"):
        graph().stationary(graph().at(START), 0, most=2)


def test_payoffs_that_grow_without_end() -> None:
    """Two states between which both ways are gains, which no ratios of throughputs are."""
    both = Candidate("p", {}), Candidate("p", {"depth": (4,)})
    states = tuple((each, 0) for each in both)
    plain = np.array([False, False])
    found = StateGraph(
        states,
        np.ones(2),
        np.array([0, 1]),
        np.array([1, 0]),
        np.full(2, 1.5),
        plain,
        1.0,
        dict(zip(states, (0, 1), strict=True)),
    )
    with pytest.raises(TreadleError, match="payoffs grow without end"):
        found.values()


def test_a_program_without_a_legal_state() -> None:
    text = (
        SMALL.replace("[4, 8, 16]", "[4]")
        .replace("[1, 2, 4, 8], [8, 16]", "[2048], [2048]")
        .replace("1 to 64", "1 to 5000000")
    )
    task = Task(anchor_of(product(48, 64, 64)), CPU, (program(text),))
    with pytest.raises(TreadleError, match="program @p has no legal state"):
        state_graph(Walk(Explored(task), Forecast(task), "0"), "p")
