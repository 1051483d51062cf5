"""A search without builds and timings: which candidates there are, why some are rejected, how the model ranks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.schedules.search.analytic import cpu_terms
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.learned import Learned
from treadle.schedules.search.survey import Survey, survey
from treadle.target import Target
from treadle.tuning.group_search import GroupSearch
from treadle.tuning.predictions import Predictions
from treadle.tuning.tasks import GroupTask
from treadle.tuning.tuner import MEASURED
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
    """ranked: candidates that the first proposal of a search looks at, fastest first, those without a time last."""

    task: GroupTask
    survey: Survey
    default: Predicted
    ranked: tuple[Predicted, ...]

    @property
    def best(self) -> Predicted:
        """The one that is predicted to be fastest, be it the default."""
        return min((self.default, *self.ranked), key=_seconds)


def preview(task: GroupTask, workers: Workers, strategy: str, seed: int) -> Preview:
    """Predicts the default and the candidates that a search with this strategy and seed looks at first.

    TreadleError for a strategy that there is not.
    """
    search = GroupSearch(task, workers, Learned(), strategy, seed)
    search.propose(MEASURED)
    search.predictions.texts([task.default])
    known = [each for each in search.predictions.known if each != task.default]
    default, *others = _predicted(search.predictions, [task.default, *known], workers.machine.target)
    return Preview(task, survey(task.search, seed), default, tuple(sorted(others, key=_seconds)))


def _predicted(predictions: Predictions, candidates: Sequence[Candidate], target: Target) -> list[Predicted]:
    works = [(each, predictions.work(each)) for each in candidates]
    return [
        Predicted(each, error=predictions.error(each)) if work is None else Predicted(each, cpu_terms(work, target))
        for each, work in works
    ]


def _seconds(predicted: Predicted) -> float:
    return float("inf") if predicted.seconds is None else predicted.seconds


__all__ = ["Predicted", "Preview", "preview"]
