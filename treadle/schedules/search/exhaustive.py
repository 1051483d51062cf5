"""Exhaustive search: all kernels of a task, the best predicted ones first."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.schedules.search.candidate import Candidate, Measured
from treadle.schedules.search.strategy import Explored, Predictor


class Exhaustive:
    """Enumerates a task's candidates and proposes them in the order of their predicted times.

    The order is found anew before each proposal, since a cost model may have learned. Every candidate is predicted,
    which for templates means lowered. Source: Hidet (ASPLOS 2023), section 4.3, which measures all of them.
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


__all__ = ["Exhaustive"]
