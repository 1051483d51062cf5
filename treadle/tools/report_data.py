"""What a tuning report says, as values: of each group what was tried, what was chosen, and how good the model was."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Attempt:
    """A candidate that was tried; times in microseconds, or the reason why there is no measured one.

    kind: `default`, `chosen`, `timed` or `failed`
    """

    schedule: str
    kind: str
    round: int
    predicted_us: float | None
    us: float | None
    error: str | None = None


@dataclass(frozen=True)
class Rejection:
    """Candidates of a program that exceed one limit: how many, and the one that does so by least."""

    program: str
    limit: str
    count: int
    example: str


@dataclass(frozen=True)
class GroupReport:
    """One group on one kind of hardware.

    name: label and shapes; count: equal groups of the model; share: of the model's time; both None without a model
    chosen: the schedule that was kept; program: the entry's text
    attempts: in the order in which they were tried, the default first
    rejected: None if nobody counted
    """

    name: str
    anchor: str
    count: int | None
    share: float | None
    default_us: float | None
    best_us: float | None
    chosen: str
    program: str | None
    attempts: tuple[Attempt, ...]
    rejected: tuple[Rejection, ...] | None = None

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the default the best schedule is."""
        return self.default_us / self.best_us if self.default_us and self.best_us else None

    @property
    def compared(self) -> int:
        """Candidates with both times."""
        return len(self._both())

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation of predicted and measured times; None for fewer than three."""
        pairs = self._both()
        return rank_correlation([p for p, _ in pairs], [m for _, m in pairs]) if len(pairs) > 2 else None

    @property
    def model_error(self) -> float | None:
        """The median of the factors, at least 1, between predicted and measured times."""
        factors = [max(p / m, m / p) for p, m in self._both()]
        return statistics.median(factors) if factors else None

    def _both(self) -> list[tuple[float, float]]:
        return [(each.predicted_us, each.us) for each in self.attempts if each.predicted_us and each.us]


@dataclass(frozen=True)
class Report:
    """facts: what holds for all groups, such as the machine, each with its name
    damaged: what could not be read of the database, each with its file
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    groups: tuple[GroupReport, ...]
    damaged: tuple[str, ...] = ()


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's: of the ranks, equal values having their mean rank; None if all values of a side are equal."""
    ranks = _ranks(one), _ranks(other)
    if any(np.ptp(each) == 0 for each in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    _, inverse, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


__all__ = ["Attempt", "GroupReport", "Rejection", "Report", "rank_correlation"]
