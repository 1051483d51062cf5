"""Evolutionary search: decisions are mutated, replaying validates them, a cost model selects.

Source: MetaSchedule (NeurIPS 2022), section 4 and figure 7, and the search that TVM ships, whose numbers these are but
for the population.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp, log
from random import Random

from treadle.schedules.search.candidate import Candidate, Measured
from treadle.schedules.search.strategy import Explored, Predictor


@dataclass(frozen=True)
class Settings:
    """How an evolution goes.

    population: of each generation. 128 finds on CPUs after two proposals of eight what TVM's 512 finds, on GPUs at most
        5 % less, in a quarter of the time (`benchmarks/results/strategies_population128-2026-11-26.json` against 512 in
        `strategies-2026-11-25.json`, with the same cost model)
    best: the part of the first one that are the best measured candidates
    generations: that follow the first one
    mutation: the probability that a survivor is mutated; attempts: to find a legal mutation
    random: the part of a proposal that is drawn at random
    pressure: survivors are drawn by predicted throughput to this power: of 20 seeds 7, 13 and 17 found the optimum of
        `test_strategies.py` with 1 (TVM's), 4 and 16; a model that errs by a fifth must not end where it began
    temperature: None takes every child. Otherwise a child takes its parent's place by Metropolis' and Hastings' rule,
        so that generations are drawn by the posterior (equation 1, with the logarithm of the time for f): the
        probability of its draw, P(tau), times its time to the power of -1 / t, where t sinks from `temperature` to 0
    """

    population: int = 128
    best: float = 0.2
    generations: int = 4
    mutation: float = 0.85
    attempts: int = 10
    random: float = 0.1
    pressure: float = 4.0
    temperature: float | None = None


class Evolution:
    """Proposes the best predicted candidates that an evolution meets, and some random ones."""

    def __init__(self, explored: Explored, predict: Predictor, seed: str, settings: Settings | None = None):
        self._explored, self._predict, self._seed = explored, predict, seed
        self._settings = Settings() if settings is None else settings

    def propose(self, count: int) -> Sequence[Candidate]:
        """At most `count` candidates: the best predicted ones, then random ones."""
        with self._explored.counted(len(self._explored.results)):
            return self._evolved(count)

    def _evolved(self, count: int) -> Sequence[Candidate]:
        random, settings = self._explored.random(self._seed), self._settings
        fresh = self._fresh(random)
        met = _Met(self._explored, self._predict)
        population = met.add([*self._best(), *fresh])
        for generation in range(settings.generations):
            left = settings.generations - generation
            population = self._next(population, met, random, left)
        drawn = min(round(count * settings.random), len(fresh))
        found = met.ranked()[: count - drawn]
        others = [each for each in fresh if each not in found and met.seconds.get(each) is not None]
        found += random.sample(others, min(count - len(found), len(others)))
        self._explored.take(found)
        return found

    def learn(self, results: Sequence[Measured]) -> None:
        """The fastest ones are in the next first generation."""
        self._explored.learn(results)

    def _best(self) -> list[Candidate]:
        """The best measured candidates of today's programs."""
        measured = [each for each in self._explored.results if self._explored.kernel(each.candidate) is not None]
        timed = sorted((each.seconds, n) for n, each in enumerate(measured) if each.seconds is not None)
        most = round(self._settings.population * self._settings.best)
        return [measured[n].candidate for _, n in timed[:most]]

    def _fresh(self, random: Random) -> list[Candidate]:
        """New random candidates."""
        draws = self._explored.draws(random, list(self._explored.task.by_name))
        return list(islice(draws, self._settings.population))

    def _next(self, population: Sequence[Candidate], met: _Met, random: Random, left: int) -> list[Candidate]:
        """The next generation, of which there are `left`: survivors drawn by predicted throughput, most of them
        mutated."""
        settings = self._settings
        if not population:
            return []
        fastest = min(map(met.known, population))
        weights = [(fastest / met.known(each)) ** settings.pressure for each in population]
        parents = random.choices(population, weights, k=settings.population)
        children = [self._child(parent, random) for parent in parents]
        met.add(children)
        temperature = None if settings.temperature is None else settings.temperature * (left - 1) / settings.generations
        return [
            child if self._is_accepted(met, parent, child, temperature, random) else parent
            for parent, child in zip(parents, children, strict=True)
        ]

    def _child(self, parent: Candidate, random: Random) -> Candidate:
        """A mutation that is legal, or the parent."""
        if random.random() >= self._settings.mutation:
            return parent
        for _ in range(self._settings.attempts):
            decisions = self._explored.task.samplers[parent.program].mutated(parent.decisions, random)
            if decisions is None:
                return parent
            child = Candidate(parent.program, decisions)
            if self._explored.kernel(child) is not None:
                return child
        return parent

    def _is_accepted(
        self, met: _Met, parent: Candidate, child: Candidate, temperature: float | None, random: Random
    ) -> bool:
        after, before = met.seconds.get(child), met.known(parent)
        if after is None:
            return False
        if temperature is None:
            return True
        if temperature <= 0:
            return after <= before
        if child == parent:
            return True
        sampler, new, old = self._explored.task.samplers[parent.program], child.decisions, parent.decisions
        forth, back = sampler.prior(old) * sampler.mutation(old, new), sampler.prior(new) * sampler.mutation(new, old)
        # More than 700 is beyond the exponential's range, and certain to be accepted.
        return random.random() * forth < back * exp(min(700.0, -log(after / before) / temperature))


class _Met:
    """The candidates of one evolution with their predicted times."""

    def __init__(self, explored: Explored, predict: Predictor):
        self._explored, self._predict = explored, predict
        self.seconds: dict[Candidate, float | None] = {}

    def add(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Predicts those that are new here; the ones that have a time."""
        new = [each for each in dict.fromkeys(candidates) if each not in self.seconds]
        self.seconds |= zip(new, self._predict(new), strict=True)
        return [each for each in candidates if self.seconds[each] is not None]

    def known(self, candidate: Candidate) -> float:
        """The predicted time of one that has one."""
        seconds = self.seconds[candidate]
        assert seconds is not None
        return seconds

    def ranked(self) -> list[Candidate]:
        """A candidate for each new kernel, the best predicted ones first."""
        found: dict[int, Candidate] = {}
        times = [(time, n, each) for n, (each, time) in enumerate(self.seconds.items()) if time is not None]
        for _, _, each in sorted(times, key=lambda triple: triple[:2]):
            kernel = self._explored.kernel(each)
            if kernel is not None and self._explored.is_new(each):
                found.setdefault(kernel, each)
        return list(found.values())


__all__ = ["Evolution", "Settings"]
