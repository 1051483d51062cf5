"""Why candidates of a task are rejected: counted by program and limit, with the least margin and an example of each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.ledger import Ledger, Rejection, rejection
from treadle.schedules.search.sampler import Sampler

MOST = 1000
"""Candidates of a program that are replayed, at 0.2 to 1 ms each; of a larger space as many are drawn."""


@dataclass(frozen=True)
class Survey:
    """How many candidates each program has, and what became of those that were replayed."""

    all: Mapping[str, int]
    ledger: Ledger

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """Why some are rejected, the most frequent reason first."""
        return self.ledger.rejections


def survey(task: Task, seed: int = 0, most: int | None = None) -> Survey:
    """Replays the candidates of a task's programs; of a program that has more than `most` (default:
    `MOST`), so many at random."""
    sizes, ledger = dict[str, int](), Ledger()
    for name, sampler in task.samplers.items():
        for decisions in _decisions(sampler, random.Random(f"{seed} {name}"), MOST if most is None else most):
            candidate = Candidate(name, decisions)
            try:
                task.replay(candidate)
                ledger.accept(name)
            except TreadleError as error:
                ledger.reject(rejection(candidate, error))
        sizes[name] = sampler.size()
    return Survey(sizes, ledger)


def _decisions(sampler: Sampler, generator: random.Random, most: int) -> Iterator[dict[str, Choice]]:
    """All decisions in order, the last sample changing fastest; of too many, some that are drawn, each once."""
    if sampler.size() <= most:
        yield from sampler.enumerate()
        return
    drawn: dict[Candidate, dict[str, Choice]] = {}
    for _ in range(20 * most):
        decisions = sampler.draw(generator) if len(drawn) < most else None
        if decisions is not None:
            drawn[Candidate("", decisions)] = decisions
    yield from drawn.values()


__all__ = ["MOST", "Survey", "survey"]
