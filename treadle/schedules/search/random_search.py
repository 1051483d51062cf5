"""Random search: what a model-driven one is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from treadle.schedules.search.candidate import Candidate, Measured
from treadle.schedules.search.strategy import Explored, Predictor


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


__all__ = ["RandomSearch"]
