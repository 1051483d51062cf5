"""The state of a search: a model's groups, what is known of each, and the search's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.strategies import STRATEGIES
from treadle.tuning.group_search import GroupSearch
from treadle.tuning.in_model import Verdict
from treadle.tuning.tasks import GroupTask

_FIRST_GAIN = 0.2
"""The fraction of its time that a group is expected to gain in its first round, where its headroom is no less; it
halves with each round."""
LEAST_GAIN = 0.02
"""The least gain over the default, as a fraction, for which a schedule is kept: two runs of one kernel differ by
less."""


@dataclass
class Group:
    """The state of one task's search. Times are seconds of one kernel.

    hardware: what it is measured on
    search: what proposes its candidates
    built: how many were compiled; trials: how many were recorded, in this search or before; failures: without a time
    """

    task: GroupTask
    hardware: str
    search: GroupSearch
    default_seconds: float | None = None
    best: Candidate | None = None
    best_seconds: float | None = None
    is_exhausted: bool = False
    rounds: int = 0
    built: int = 0
    trials: int = 0
    failures: int = 0
    gains: list[float] = field(default_factory=list[float])
    headroom: float = 1.0
    """The fraction of its default's time that it can gain at most."""
    confirmed: bool | None = None
    """Whether the best schedule was faster than the default in the last timing; None before that timing."""
    in_model: Verdict | None = None
    alone: str | None = None
    """Why the best schedule was compared with the default alone, and not in the whole model."""
    dropped: str | None = None
    """Why an entry's schedule could not be timed anew."""

    @property
    def default(self) -> Candidate:
        """The schedule without a search."""
        return self.task.default

    @property
    def ranked(self) -> int:
        """Candidates that searches have looked at, and that are legal and could be lowered where they had to be."""
        return self.search.explored.ledger.legal - self.search.predictions.failed

    @property
    def rejected(self) -> int:
        """Candidates that searches have looked at, and that are not legal or could not be lowered."""
        return self.search.explored.ledger.rejected + self.search.predictions.failed

    @property
    def weight(self) -> float:
        """Seconds of all equal groups together, with the best schedule so far."""
        return self.task.count * (self.best_seconds or self.default_seconds or 0.0)

    @property
    def expected_gain(self) -> float:
        """Seconds that the next round is expected to gain."""
        if self.default_seconds is None or self.is_exhausted:
            return 0.0
        recent = max(self.gains[-2:], default=0.0)
        first = max(LEAST_GAIN, min(_FIRST_GAIN, self.headroom))
        return self.weight * max(recent, first * 0.5**self.rounds)


@dataclass(frozen=True)
class Options:
    """seconds: limit of the whole search; trials: limit of the candidates that are timed; threads: of each call;
    strategy: a name of `STRATEGIES`; reserved: seconds of these that are left when the search ends
    started: when they began, by `time.monotonic`; None is when the search begins"""

    seconds: float
    threads: int
    trials: int | None = None
    seed: int = 0
    strategy: str = next(iter(STRATEGIES))
    reserved: float = 0.0
    started: float | None = None


def model_seconds(groups: Sequence[Group]) -> tuple[float, float]:
    """The sum of all kernels' times, with the default and with the best schedules."""
    default = sum(group.task.count * (group.default_seconds or 0.0) for group in groups)
    return default, sum(group.weight for group in groups)


__all__ = ["LEAST_GAIN", "Group", "Options", "model_seconds"]
