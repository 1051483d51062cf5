"""Why candidates of a task are rejected: counted by program and limit, with the least margin and an example of each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.ledger import Ledger, Rejection
from treadle.schedules.search.sampler import Sampler

MOST = 1000
"""Candidates of a program that are replayed, at 0.2 to 1 ms each; of a larger space as many are drawn."""


@dataclass(frozen=True)
class Survey:
    """Candidates by program: `legal` and `replayed` ones, of `all`; and why the others are rejected, most first."""

    all: Mapping[str, int]
    replayed: Mapping[str, int]
    legal: Mapping[str, int]
    rejected: tuple[Rejection, ...]

    @property
    def rejections(self) -> int:
        """Candidates that were rejected."""
        return sum(each.count for each in self.rejected)


def survey(task: Task, seed: int = 0, most: int | None = None) -> Survey:
    """Replays the candidates of a task's programs; of a program that has more than `most` (default:
    `MOST`), so many at random."""
    sizes: dict[str, int] = {}
    replayed: dict[str, int] = {}
    legal: dict[str, int] = {}
    ledger = Ledger()
    for name, sampler in task.samplers.items():
        before = ledger.legal, ledger.replayed
        for decisions in _decisions(sampler, random.Random(f"{seed} {name}"), MOST if most is None else most):
            candidate = Candidate(name, decisions)
            try:
                task.replay(candidate)
                ledger.accept()
            except TreadleError as error:
                ledger.reject(candidate, error)
        sizes[name] = sampler.size()
        legal[name], replayed[name] = ledger.legal - before[0], ledger.replayed - before[1]
    return Survey(sizes, replayed, legal, ledger.rejections)


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
