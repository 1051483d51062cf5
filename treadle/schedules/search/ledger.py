"""Why candidates were rejected: counts by schedule program and limit, so that a bad sample is seen."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from treadle.errors import TreadleError
from treadle.schedules.limits import LimitError
from treadle.schedules.search.candidate import Candidate

_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass
class Rejections:
    """The candidates of one program that one limit rejects.

    margin: the least fraction by which it is exceeded, None for what has no amount
    example, message: of that candidate, else of the first one
    """

    program: str
    limit: str
    count: int
    margin: float | None
    example: Candidate
    message: str


@dataclass
class Ledger:
    """What became of the candidates that were replayed: each is legal, or rejected for one reason."""

    legal: int = 0
    rejections: dict[tuple[str, str], Rejections] = field(default_factory=dict[tuple[str, str], Rejections])

    @property
    def rejected(self) -> int:
        """Candidates that were not legal."""
        return sum(each.count for each in self.rejections.values())

    @property
    def replayed(self) -> int:
        """All candidates that were replayed."""
        return self.legal + self.rejected

    def accept(self) -> None:
        """Counts a legal candidate."""
        self.legal += 1

    def reject(self, candidate: Candidate, error: TreadleError) -> None:
        """Counts a candidate that is not legal, by its limit; without a limit, by the message without its numbers."""
        limited = isinstance(error, LimitError)
        limit = error.what if limited else _NUMBER.sub("N", error.message)
        margin = error.used / max(error.allowed, 1) - 1 if limited else None
        key = candidate.program, limit
        known = self.rejections.get(key)
        if known is None:
            self.rejections[key] = Rejections(*key, 1, margin, candidate, error.message)
            return
        known.count += 1
        if margin is not None and (known.margin is None or margin < known.margin):
            known.margin, known.example, known.message = margin, candidate, error.message

    def records(self) -> list[dict[str, Any]]:
        """A line for each reason, the most frequent first, as JSON says it."""
        found: list[dict[str, Any]] = []
        for each in sorted(self.rejections.values(), key=lambda each: -each.count):
            line = {name: value for name, value in asdict(each).items() if value is not None}
            line["example"] = dict(each.example.decisions)
            found.append(line | ({} if each.margin is None else {"margin": round(each.margin, 4)}))
        return found


__all__ = ["Ledger", "Rejections"]
