"""Why candidates of a task are rejected: counted by program and limit, with the least margin and an example of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

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


def survey(task: Task, seed: int = 0, most: int | None = None, left: Callable[[], float] = lambda: inf) -> Survey:
    """Replays the candidates of a task's programs; of a program that has more than `most` (default:
    `MOST`), so many at random.

    left: seconds that remain, of which each program has its part
    """
    sizes, ledger = dict[str, int](), Ledger()
    for number, (name, sampler) in enumerate(task.samplers.items()):
        kept = _kept(left(), len(task.samplers) - number)
        for decisions in _decisions(sampler, random.Random(f"{seed} {name}"), MOST if most is None else most):
            if left() <= kept:
                break
            candidate = Candidate(name, decisions)
            try:
                task.replay(candidate)
                ledger.accept(name)
            except TreadleError as error:
                ledger.reject(rejection(candidate, error))
        sizes[name] = sampler.size()
    return Survey(sizes, ledger)


def _kept(left: float, parts: int) -> float:
    """Seconds that are kept for the other programs, of which each has its part."""
    return -inf if left == inf else left * (1 - 1 / parts)


def _decisions(sampler: Sampler, generator: random.Random, most: int) -> Iterator[dict[str, Choice]]:
    """All decisions in order, the last sample changing fastest; of too many, some that are drawn, each once."""
    if sampler.size() <= most:
        yield from sampler.enumerate()
        return
    drawn: set[Candidate] = set()
    for _ in range(20 * most):
        decisions = sampler.draw(generator) if len(drawn) < most else None
        if decisions is None or (candidate := Candidate("", decisions)) in drawn:
            continue
        drawn.add(candidate)
        yield decisions


__all__ = ["MOST", "Survey", "survey"]
