"""A search without builds and timings: which candidates there are, why some are rejected, how the model ranks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.schedules.search.analytic import cpu_terms
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.proposals import Proposals
from treadle.schedules.search.survey import Survey, survey
from treadle.target import Target
from treadle.tuning.building import print_all
from treadle.tuning.candidates import Printed
from treadle.tuning.tasks import GroupTask
from treadle.tuning.tuner import DRAWN
from treadle.tuning.workers import Workers


@dataclass(frozen=True)
class Predicted:
    """A candidate's predicted time by its terms, in seconds, or why it has none."""

    candidate: Candidate
    terms: Mapping[str, float] = field(default_factory=dict[str, float])
    error: str | None = None

    @property
    def seconds(self) -> float | None:
        """The sum of the terms."""
        return sum(self.terms.values()) if self.error is None else None


@dataclass(frozen=True)
class Preview:
    """ranked: candidates as the first round of a search draws them, fastest first, those without a time last."""

    task: GroupTask
    survey: Survey
    default: Predicted
    ranked: tuple[Predicted, ...]

    @property
    def best(self) -> Predicted:
        """The one that is predicted to be fastest, be it the default."""
        return min((self.default, *self.ranked), key=_seconds)


def preview(task: GroupTask, workers: Workers, seed: int) -> Preview:
    """Lowers the default and the candidates that a search with this seed draws first."""
    every = task.search.distinct(known=[task.default])
    drawn = Proposals(every, f"{seed} {task.digest}").draw(DRAWN, [task.default])
    default, *others = _predicted(print_all(workers, task, [task.default, *drawn]), workers.machine.target)
    return Preview(task, survey(task.search, seed), default, tuple(sorted(others, key=_seconds)))


def _predicted(texts: Sequence[Printed], target: Target) -> list[Predicted]:
    return [
        Predicted(text.candidate, error=text.error or "it has no work")
        if text.work is None
        else Predicted(text.candidate, cpu_terms(text.work, target))
        for text in texts
    ]


def _seconds(predicted: Predicted) -> float:
    return float("inf") if predicted.seconds is None else predicted.seconds


__all__ = ["Predicted", "Preview", "preview"]
