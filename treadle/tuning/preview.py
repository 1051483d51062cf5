"""A search without builds and timings: which candidates there are, why some are rejected, how the model ranks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.learned import Learned
from treadle.schedules.search.predict import predicted_terms
from treadle.schedules.search.rejections import Survey, survey
from treadle.schedules.work.gpu_work import AnyWork
from treadle.target import Target
from treadle.tuning.candidates import Left, Predictions
from treadle.tuning.group_search import GroupSearch
from treadle.tuning.tasks import GroupTask
from treadle.tuning.tuner import MEASURED
from treadle.tuning.workers import OutOfTimeError, Workers, endless

_SURVEYED = 1 / 3
_NO_TIME = "the time did not suffice"


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
    """ranked: candidates that the first proposal of a search looks at, fastest first, those without a time last
    is_complete: whether the time sufficed for all that the proposal looks at
    """

    task: GroupTask
    survey: Survey
    default: Predicted
    ranked: tuple[Predicted, ...]
    is_complete: bool = True

    @property
    def best(self) -> Predicted:
        """The one that is predicted to be fastest, be it the default."""
        return min((self.default, *self.ranked), key=_seconds)


def preview(task: GroupTask, workers: Workers, strategy: str, seed: int, left: Left = endless) -> Preview:
    """Predicts the default and the candidates that a search with this strategy and seed looks at first.

    left: seconds that remain for it, a third of which samples what is rejected
    TreadleError for a strategy that there is not.
    """
    search, whole = GroupSearch(task, workers, Learned(), strategy, seed, left), left()
    is_complete = True
    try:
        search.predictions.work(task.default)
    except OutOfTimeError:
        is_complete = False
    surveyed = survey(task.search, seed, left=lambda: left() - whole * (1 - _SURVEYED) if whole < inf else inf)
    try:
        search.propose(MEASURED)
    except OutOfTimeError:
        is_complete = False
    known = [each for each in search.predictions.known if each != task.default]
    default, *others = _predicted(search.predictions, [task.default, *known], workers.machine.target)
    return Preview(task, surveyed, default, tuple(sorted(others, key=_seconds)), is_complete)


def _predicted(predictions: Predictions, candidates: Sequence[Candidate], target: Target) -> list[Predicted]:
    works: list[tuple[Candidate, AnyWork | None]] = []
    for each in candidates:
        try:
            works.append((each, predictions.work(each)))
        except OutOfTimeError:
            works.append((each, None))
    return [
        Predicted(each, error=predictions.error(each) or _NO_TIME)
        if work is None
        else Predicted(each, predicted_terms(work, target))
        for each, work in works
    ]


def _seconds(predicted: Predicted) -> float:
    return float("inf") if predicted.seconds is None else predicted.seconds


__all__ = ["Predicted", "Preview", "preview"]
