"""Strategies on a task whose times a formula gives: what they find, in how many trials, and the same each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import log2
from random import Random

import pytest
from xdsl.parser import Parser

from tests.schedules.search.anchors import anchor
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp
from treadle.schedules.search.candidate import Candidate, Measured, Strategy, Task
from treadle.schedules.search.evolution import Evolution, Settings, _Met
from treadle.schedules.search.programs import template_programs
from treadle.schedules.search.rejections import Ledger
from treadle.schedules.search.strategies import STRATEGIES, Exhaustive
from treadle.schedules.search.strategy import Explored
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

CPU = Target.parse("cpu")
PROGRAM = """
schedule.program @tiled for "cpu" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %i_inner, %j_inner = schedule.sample_tile "tile" 2 from [1, 2, 4, 8, 16, 32] product 1 to 2048
  %d = schedule.sample "depth" from [1, 2, 4, 8]
  %b = schedule.sample "block" from [1, 2, 3]
  %i0, %i1, %i2 = schedule.split %i by (%b, %i_inner)
  %j0, %j1 = schedule.split %j by (%j_inner)
  %k0, %k1 = schedule.split %k by (%d)
  schedule.arrange block(%i0, %j0) repeat(%i1) loop(%k0) loop(%k1) repeat(%i2, %j1)
}
"""
OPTIMUM = {"tile": (8, 16), "depth": 4, "block": 2}
SMALL = Settings(population=24, generations=4)
Seconds = Callable[[Candidate], float | None]


def task(text: str = PROGRAM) -> Task:
    ops = Parser(treadle_context(), text).parse_module().body.block.ops
    return Task(anchor("matmul", 24, 40), CPU, tuple(op for op in ops if isinstance(op, ProgramOp)))


def planted(candidate: Candidate) -> float:
    """1 at the optimum; a step from it in any direction costs something, more where two are off at once."""
    tile, depth, block = (candidate.decisions[name] for name in ("tile", "depth", "block"))
    assert isinstance(tile, tuple)
    assert isinstance(depth, int)
    assert isinstance(block, int)
    off = abs(log2(tile[0]) - 3) + abs(log2(tile[1]) - 4) + abs(log2(depth) - 2) + abs(block - 2)
    return 1 + 0.1 * off + 0.02 * off**2


def uneven(candidate: Candidate) -> float:
    """The same with local optima: what a kernel takes differs from what a smooth model says."""
    digits = sum((n + 1) * ord(each) for n, each in enumerate(str(candidate)))
    return planted(candidate) * (1 + 0.15 * (digits * 7919 % 101) / 101)


class Formula:
    """Predicts by a formula, and counts how often it was asked."""

    def __init__(self, seconds: Seconds):
        self._seconds = seconds
        self.asked: dict[Candidate, None] = {}

    def __call__(self, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        self.asked |= dict.fromkeys(candidates)
        return [self._seconds(each) for each in candidates]


def run(strategy: Strategy, seconds: Seconds, trials: int, count: int = 8) -> list[Measured]:
    """Measures what a strategy proposes."""
    found: list[Measured] = []
    while len(found) < trials and (proposed := strategy.propose(min(count, trials - len(found)))):
        results = [Measured(each, seconds(each)) for each in proposed]
        strategy.learn(results)
        found += results
    return found


def best(results: Sequence[Measured]) -> float:
    return min(each.seconds for each in results if each.seconds is not None)


MANY = [name for name in STRATEGIES if name != "greedy"]
"""Those that propose as many candidates as are wanted; `test_greedy.py` has the other."""


@pytest.mark.parametrize("name", MANY)
def test_the_seed_decides_and_everything_comes_once(name: str) -> None:
    def tried(seed: str) -> list[str]:
        results = run(STRATEGIES[name](Explored(task()), Formula(planted), seed), uneven, 16)
        return [str(each.candidate) for each in results]

    first = tried("a")
    assert len(first) == 16 == len(set(first))
    assert tried("a") == first
    assert (tried("b") == first) == (name == "exhaustive")


def overfull() -> Task:
    """A task of which some candidates have more accumulators than allowed."""
    return task(PROGRAM.replace("32] product", "32, 64] product").replace("to 2048", "to 4096"))


@pytest.mark.parametrize("name", MANY)
def test_a_search_that_was_interrupted_proposes_the_same(name: str) -> None:
    """And counts the same of what it rejects, by draws, whether it met some of that before or not."""

    def explored() -> Explored:
        return Explored(overfull(), name)

    first, second = explored(), explored()
    whole = run(STRATEGIES[name](first, Formula(planted), "a"), uneven, 24)
    resumed = STRATEGIES[name](second, Formula(planted), "a")
    resumed.learn(whole[:8])
    assert [each.candidate for each in run(resumed, uneven, 16)] == [each.candidate for each in whole[8:]]
    assert second.ledgers == {draw: first.ledgers[draw] for draw in second.drawn}
    assert {"exhaustive all", f"{name} 0"} & set(first.ledgers)
    assert first.ledger.rejected > 0 or name == "walk-paper"  # whose tiles stay small


def test_exhaustive_search_goes_through_all_by_their_predictions() -> None:
    of = task()
    results = run(Exhaustive(Explored(of), Formula(planted), ""), planted, 10_000, 50)
    times = [each.seconds for each in results]
    assert times == sorted(times, key=lambda time: time or 0)
    kernels = [of.replay(each.candidate) for each in results]
    assert len(set(kernels)) == len(kernels) == len(of.distinct())
    assert results[0].candidate.decisions == OPTIMUM


def test_evolution_finds_the_optimum_of_a_model() -> None:
    """By predictions alone, of which it asks for fewer than there are candidates."""
    of = task()
    for seed in "abc":
        model = Formula(planted)
        (found,) = Evolution(Explored(of), model, seed, Settings(population=32, generations=8)).propose(1)
        assert found.decisions == OPTIMUM
        assert len(model.asked) < len(of.distinct()) / 2


def test_evolution_needs_a_quarter_of_the_trials() -> None:
    """98 % of the best throughput, whichever the seed, with a model that does not know the local optima."""
    of = task()
    every = of.distinct()
    optimum = min(uneven(each) for each in every)
    for seed in "abcde":
        evolution = Evolution(Explored(of), Formula(planted), seed, SMALL)
        assert optimum / best(run(evolution, uneven, len(every) // 4 - 1)) >= 0.98


def test_metropolis_keeps_parents_that_are_faster() -> None:
    """At a low temperature no child that is slower takes its parent's place, so that the generations are faster."""

    def mean(temperature: float | None) -> float:
        model = Formula(planted)
        settings = Settings(population=24, generations=4, best=0, mutation=1.0, temperature=temperature)
        Evolution(Explored(task()), model, "a", settings).propose(8)
        late = list(model.asked)[60:]
        return sum(map(planted, late)) / len(late)

    assert mean(1e-6) < mean(None)


LIKELY = """
schedule.program @weighted for "cpu" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %b = schedule.sample "block" from [1, 2, 3] weights [1.0, 8.0, 1.0]
  %d = schedule.sample "depth" from [1, 2]
  %i0, %i1 = schedule.split %i by (%b)
  %k0, %k1 = schedule.split %k by (%d)
  schedule.arrange block(%i0, %j) repeat(%i1) loop(%k0) loop(%k1)
}
"""


def test_the_prior_is_that_of_the_draws() -> None:
    sampler = task(LIKELY).samplers["weighted"]
    priors = {str(each): sampler.prior(each) for each in sampler.enumerate()}
    assert sum(priors.values()) == pytest.approx(1)
    assert priors[str({"block": 2, "depth": 1})] == pytest.approx(0.4)


def test_mutations_are_as_likely_as_they_are_frequent() -> None:
    sampler, random, old = task(LIKELY).samplers["weighted"], Random(3), {"block": 1, "depth": 1}
    drawn = [str(sampler.mutated(old, random)) for _ in range(4000)]
    others = [each for each in sampler.enumerate() if each != old]
    for each in others:
        assert sampler.mutation(old, each) == pytest.approx(drawn.count(str(each)) / 4000, abs=0.03)
    assert sum(sampler.mutation(old, each) for each in others) == pytest.approx(1)


def test_generations_are_drawn_by_the_posterior() -> None:
    """MetaSchedule's equation 1: what is likely times what is fast. One of the two depths takes twice as long, which
    halves its part at temperature 1."""
    settings = Settings(population=3000, generations=10, best=0, pressure=0, temperature=1.0)
    explored, random = Explored(task(LIKELY)), Random(5)
    model = Formula(lambda candidate: float(str(candidate.decisions["depth"])))
    evolution, met = Evolution(explored, model, "a", settings), _Met(explored, model)
    population = met.add([Candidate("weighted", {"block": 1, "depth": 2})] * settings.population)
    for _ in range(30):
        population = evolution._next(population, met, random, settings.generations + 1)
    parts = Counter((each.decisions["block"], each.decisions["depth"]) for each in population)
    for block, weight in ((1, 0.1), (2, 0.8), (3, 0.1)):
        for depth, speed in ((1, 2 / 3), (2, 1 / 3)):
            assert parts[block, depth] / settings.population == pytest.approx(weight * speed, abs=0.04)


def test_what_cannot_be_predicted_is_not_proposed() -> None:
    def seconds(candidate: Candidate) -> float | None:
        return None if candidate.decisions["block"] == 2 else planted(candidate)

    exhaustive = Exhaustive(Explored(task()), Formula(seconds), "a")
    evolution = Evolution(Explored(task()), Formula(seconds), "a", SMALL)
    for strategy in (exhaustive, evolution):
        results = run(strategy, planted, 30)
        assert len(results) == 30
        assert all(each.candidate.decisions["block"] != 2 for each in results)


def test_the_ledger_adds_up() -> None:
    """Every candidate that was replayed is legal or counted with one reason; the least margin is the example's."""
    explored = Explored(overfull())
    explored.kernel(Candidate("tiled", {}))
    assert explored.ledger == Ledger(), "nothing was drawn"
    with explored.counted("all"):
        for sampler in explored.task.samplers.values():
            for decisions in sampler.enumerate():
                explored.kernel(Candidate("tiled", decisions))
                explored.kernel(Candidate("tiled", decisions))
        explored.kernel(Candidate("tiled", {}))
    every = sum(1 for _ in explored.task.samplers["tiled"].enumerate())
    ledger = explored.ledger
    assert ledger.replayed == every + 1 == ledger.legal + ledger.rejected
    assert ledger.legal == sum(1 for _ in explored.task._legal(explored.task.programs[0]))
    limit, open_ = ledger.rejections
    assert limit.count == ledger.rejected - 1 == 36
    assert (limit.limit, limit.margin) == ("accumulators", 1.0)
    assert "2048 accumulators" in limit.reason
    tile = limit.closest.decisions["tile"]
    assert isinstance(tile, tuple)
    assert set(tile) == {32, 64}
    assert (open_.program, open_.count, open_.margin, open_.closest.decisions) == ("tiled", 1, None, {})
    assert "is open" in open_.reason


def test_an_exhaustive_search_counts_what_it_leaves_out() -> None:
    """Of templates, too, which list their legal candidates themselves."""
    of = anchor("softmax", 2, 20_000)
    explored = Explored(Task(of, CPU, tuple(template_programs(of, CPU))))
    Exhaustive(explored, Formula(lambda candidate: 1.0), "").propose(1)
    (limit,) = explored.ledger.rejections
    assert (limit.program, limit.count) == ("row_cpu", len(list(TEMPLATES["row_cpu"].space(of, CPU).excluded())))


def test_a_limit_that_rejects_nearly_everything_is_named() -> None:
    """More than nine tenths of a program's candidates, not of all."""
    explored = Explored(task(PROGRAM.replace("[1, 2, 4, 8, 16, 32]", "[64, 128]").replace("to 2048", "to 16384")))
    with explored.counted("all"):
        explored.every()
    (limit,) = explored.ledger.wasteful
    assert (limit.program, limit.limit) == ("tiled", "accumulators")
    assert limit.count > 0.9 * explored.ledger.replayed_of("tiled")
    for _ in range(limit.count):
        explored.ledgers["all"].accept("tiled")
    assert explored.ledger.wasteful == ()
    explored.ledgers["all"].accept("other", 10_000)
    assert explored.ledger.wasteful == ()
