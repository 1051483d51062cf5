"""Why candidates were rejected: counts by schedule program and limit, so that a bad sample is seen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from treadle.errors import TreadleError
from treadle.schedules.limits import LimitError
from treadle.schedules.search.candidate import Candidate

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


__all__ = ["Ledger", "Rejection", "filled", "limit_of", "rejection", "total"]
