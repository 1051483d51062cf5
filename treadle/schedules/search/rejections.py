"""Why candidates were rejected: counts by schedule program and limit, so that a bad sample is seen."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.sampler import Sampler
from treadle.schedules.template import LimitError

_NUMBER = re.compile(r"\d+(\.\d+)?")
_MOST_REJECTED = 0.9
"""The part of a program's candidates above which one limit says that the rule's samples are bad."""


@dataclass(frozen=True)
class Rejection:
    """Candidates of a program that one limit rejects.

    margin: the fraction of what is allowed by which the closest one exceeds it; None of what is no amount
    reason: of the closest one, the first of equal ones
    """

    program: str
    limit: str
    count: int
    margin: float | None
    closest: Candidate
    reason: str

    def __add__(self, other: Rejection) -> Rejection:
        """Both counts, with the closer example."""
        margins = [inf if each.margin is None else each.margin for each in (self, other)]
        return replace(other if margins[1] < margins[0] else self, count=self.count + other.count)


@dataclass
class Ledger:
    """What became of the candidates that were replayed: each is legal, or rejected for one reason.

    accepted: the legal ones by program
    """

    accepted: Counter[str] = field(default_factory=Counter[str])
    _rejections: dict[tuple[str, str], Rejection] = field(default_factory=dict[tuple[str, str], Rejection])

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """The reasons, the most frequent first."""
        return tuple(sorted(self._rejections.values(), key=lambda each: -each.count))

    @property
    def legal(self) -> int:
        """Candidates that were legal."""
        return self.accepted.total()

    @property
    def rejected(self) -> int:
        """Candidates that were not legal."""
        return sum(each.count for each in self._rejections.values())

    @property
    def replayed(self) -> int:
        """All candidates that were replayed."""
        return self.legal + self.rejected

    def replayed_of(self, program: str) -> int:
        """The candidates of one program that were replayed."""
        return self.accepted[program] + sum(each.count for each in self.rejections if each.program == program)

    @property
    def programs(self) -> list[str]:
        """The programs of which candidates were replayed."""
        return list(dict.fromkeys([*self.accepted, *(each.program for each in self.rejections)]))

    @property
    def wasteful(self) -> tuple[Rejection, ...]:
        """The limits that reject more than nine tenths of a program's candidates."""
        return tuple(r for r in self.rejections if r.count > _MOST_REJECTED * self.replayed_of(r.program))

    def accept(self, program: str, count: int = 1) -> None:
        """Counts legal candidates."""
        self.accepted[program] += count

    def reject(self, rejection: Rejection) -> None:
        """Counts candidates that are not legal."""
        key = rejection.program, rejection.limit
        known = self._rejections.get(key)
        self._rejections[key] = rejection if known is None else known + rejection

    def of(self, programs: Iterable[str]) -> Ledger:
        """The counts of some programs."""
        kept = set(programs)
        counts = Counter({name: count for name, count in self.accepted.items() if name in kept})
        return Ledger(counts, {key: each for key, each in self._rejections.items() if each.program in kept})


def rejection(candidate: Candidate, error: TreadleError) -> Rejection:
    """One candidate that is not legal."""
    return Rejection(candidate.program, limit_of(error), 1, _margin(error), candidate, error.message)


def filled(known: Ledger, other: Ledger) -> Ledger:
    """Known counts, and another ledger's of the programs that these say nothing of."""
    return total([known, other.of(set(other.programs) - set(known.programs))])


def total(ledgers: Iterable[Ledger]) -> Ledger:
    """What several ledgers count together."""
    found = Ledger()
    for ledger in ledgers:
        for program, count in ledger.accepted.items():
            found.accept(program, count)
        for each in ledger.rejections:
            found.reject(each)
    return found


def limit_of(error: TreadleError) -> str:
    """What rejections are counted by: the limit, or the message without its numbers."""
    return error.what if isinstance(error, LimitError) else _NUMBER.sub("N", error.message)


def _margin(error: TreadleError) -> float | None:
    return (error.used - error.allowed) / max(error.allowed, 1) if isinstance(error, LimitError) else None


# Why candidates of a task are rejected: counted by program and limit, with the least margin and an example of each.

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


def rejection_lines(ledger: Ledger, program: str) -> Iterator[str]:
    """Two lines for each limit of a program, the most frequent first."""
    wasteful = ledger.wasteful
    for each in ledger.rejections:
        if each.program == program:
            margin = "" if each.margin is None else f", at least {each.margin:.1%} too much"
            most = ", more than nine tenths of all" if each in wasteful else ""
            yield f"    {each.count} rejected: {each.limit}{margin}{most}"
            yield f"      the closest: {each.closest}: {each.reason}"
