"""Why candidates were rejected: counts by schedule program and limit, so that a bad sample is seen."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from math import inf

from treadle.errors import TreadleError
from treadle.schedules.limits import LimitError
from treadle.schedules.search.candidate import Candidate

_NUMBER = re.compile(r"\d+(\.\d+)?")


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


@dataclass
class Ledger:
    """What became of the candidates that were replayed: each is legal, or rejected for one reason."""

    legal: int = 0
    _rejections: dict[tuple[str, str], Rejection] = field(default_factory=dict[tuple[str, str], Rejection])

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """The reasons, the most frequent first."""
        return tuple(sorted(self._rejections.values(), key=lambda each: -each.count))

    @property
    def rejected(self) -> int:
        """Candidates that were not legal."""
        return sum(each.count for each in self._rejections.values())

    @property
    def replayed(self) -> int:
        """All candidates that were replayed."""
        return self.legal + self.rejected

    def accept(self) -> None:
        """Counts a legal candidate."""
        self.legal += 1

    def reject(self, candidate: Candidate, error: TreadleError) -> None:
        """Counts a candidate that is not legal."""
        key = candidate.program, limit_of(error)
        new = Rejection(*key, 1, _margin(error), candidate, error.message)
        known = self._rejections.get(key)
        if known is None:
            self._rejections[key] = new
            return
        margins = [inf if each.margin is None else each.margin for each in (known, new)]
        self._rejections[key] = replace(new if margins[1] < margins[0] else known, count=known.count + 1)


def limit_of(error: TreadleError) -> str:
    """What rejections are counted by: the limit, or the message without its numbers."""
    return error.what if isinstance(error, LimitError) else _NUMBER.sub("N", error.message)


def _margin(error: TreadleError) -> float | None:
    return (error.used - error.allowed) / max(error.allowed, 1) if isinstance(error, LimitError) else None


__all__ = ["Ledger", "Rejection", "limit_of"]
