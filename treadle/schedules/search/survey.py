"""Why candidates of a task are rejected: counted by program and limit, with the least margin and an example of each."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.schedules.limits import LimitError
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.sampler import Sampler

MOST = 1000
"""Candidates of a program that are replayed, at 0.2 to 1 ms each; of a larger space as many are drawn."""
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Rejection:
    """Candidates of a program that one limit rejects.

    margin: the fraction of what is allowed by which the closest one exceeds it; None of what is no amount
    reason: of the closest one
    """

    program: str
    limit: str
    count: int
    margin: float | None
    closest: Candidate
    reason: str


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
    found: dict[tuple[str, str], Rejection] = {}
    for name, sampler in task.samplers.items():
        sizes[name], replayed[name], legal[name] = sampler.size(), 0, 0
        for decisions in _decisions(sampler, random.Random(f"{seed} {name}"), MOST if most is None else most):
            candidate = Candidate(name, decisions)
            replayed[name] += 1
            try:
                task.replay(candidate)
                legal[name] += 1
            except TreadleError as error:
                key = (name, limit_of(error))
                found[key] = _counted(found.get(key), Rejection(*key, 1, _margin(error), candidate, error.message))
    return Survey(sizes, replayed, legal, tuple(sorted(found.values(), key=lambda each: -each.count)))


def limit_of(error: TreadleError) -> str:
    """What rejections are counted by: the limit, or the message without its numbers."""
    return error.what if isinstance(error, LimitError) else _NUMBER.sub("N", error.message)


def _margin(error: TreadleError) -> float | None:
    return (error.used - error.allowed) / max(error.allowed, 1) if isinstance(error, LimitError) else None


def _counted(known: Rejection | None, new: Rejection) -> Rejection:
    """Both as one: the example is the closer one, the first of equal ones."""
    if known is None:
        return new
    margins = [inf if each.margin is None else each.margin for each in (known, new)]
    closest = new if margins[1] < margins[0] else known
    return Rejection(new.program, new.limit, known.count + 1, closest.margin, closest.closest, closest.reason)


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


__all__ = ["MOST", "Rejection", "Survey", "limit_of", "survey"]
