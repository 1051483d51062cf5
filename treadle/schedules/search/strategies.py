"""The strategies by name, and those that ask no model: random and exhaustive search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias

from treadle.schedules.search.candidate import Candidate, Measured, Strategy
from treadle.schedules.search.evolution import Evolution, Settings
from treadle.schedules.search.greedy import Greedy
from treadle.schedules.search.strategy import Explored, Predictor
from treadle.schedules.search.walk import Walk, WalkSettings

# Random search: what a model-driven one is compared with.


class RandomSearch:
    """Proposes random candidates: programs alike, samples by their weights. No prediction is asked for."""

    def __init__(self, explored: Explored, predict: Predictor, seed: str):
        del predict
        self._explored, self._seed = explored, seed

    def propose(self, count: int) -> Sequence[Candidate]:
        """At most `count` random candidates."""
        random, names = self._explored.random(self._seed), list(self._explored.task.by_name)
        with self._explored.counted(len(self._explored.results)):
            found = list(islice(self._explored.draws(random, names), count))
        self._explored.take(found)
        return found

    def learn(self, results: Sequence[Measured]) -> None:
        """What was measured is not proposed."""
        self._explored.learn(results)


# Exhaustive search: all kernels of a task, the best predicted ones first.


class Exhaustive:
    """Enumerates a task's candidates and proposes them in the order of their predicted times.

    The order is found anew before each proposal, since a cost model may have learned. Source: Hidet (ASPLOS 2023),
    section 4.3, which measures all of them.
    """

    def __init__(self, explored: Explored, predict: Predictor, seed: str):
        del seed  # nothing is random
        self._explored, self._predict = explored, predict
        self._left: list[Candidate] | None = None

    def propose(self, count: int) -> Sequence[Candidate]:
        """The `count` best predicted ones that are left."""
        if self._left is None:
            with self._explored.counted("all"):
                self._left = self._explored.every()
        left = [each for each in self._left if self._explored.is_new(each)]
        times = [(time, each) for each, time in zip(left, self._predict(left), strict=True) if time is not None]
        found = [each for _, each in sorted(times, key=lambda pair: pair[0])[:count]]
        self._left = [each for _, each in times]
        self._explored.take(found)
        return found

    def learn(self, results: Sequence[Measured]) -> None:
        """What was measured is not proposed."""
        self._explored.learn(results)


ANNEALED = 0.1
"""The temperature at which an annealed evolution begins: of children that are predicted to be 1.1 times as slow as
their parents it then takes 39 %, of those twice as slow one in a thousand. Assumed, not measured."""

MakeStrategy: TypeAlias = Callable[[Explored, Predictor, str], Strategy]
"""Makes the strategy of one task from what is known of it, a predictor, and a seed."""

STRATEGIES: dict[str, MakeStrategy] = {
    "evolution": Evolution,
    "evolution-annealed": partial(Evolution, settings=Settings(temperature=ANNEALED)),
    "exhaustive": Exhaustive,
    "greedy": Greedy,
    "random": RandomSearch,
    "walk": Walk,
    "walk-paper": partial(Walk, settings=WalkSettings(benefits="paper")),
}
"""The first one is the default. `evolution-annealed` takes slower children as MetaSchedule's figure 7 does
(annealed Metropolis-Hastings), `walk-paper` weighs actions by Gensor's formulas as printed."""
