"""Predicted times of one group's candidates: from their values where these say what a kernel does, else by lowering."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Candidate, CostModel
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.work import Work
from treadle.tuning.building import Left, print_all
from treadle.tuning.candidates import Printed
from treadle.tuning.tasks import GroupTask
from treadle.tuning.workers import OutOfTimeError, Workers, endless

LOWERED = 24
"""Candidates that are lowered for one proposal, at 50 to 100 ms each. With these and populations of 128, Inception-V3
had 39 rounds in four minutes, with 48 and 512 it had 25 (two cores of Zen 4, 2026-11-26)."""
_KEPT = 8192
"""Works of nests that are kept; counting one again takes about a millisecond."""


class Predictions:
    """What a cost model says of a group's candidates; a `Predictor`, which tells strategies what is costly."""

    def __init__(self, task: GroupTask, workers: Workers, model: CostModel, left: Left = endless):
        self._task, self._workers, self._model, self._left = task, workers, model, left
        self._forecast, self._target = Forecast(task.search), task.search.target
        self._counted: dict[Candidate, Work] = {}
        self._lowered: dict[Candidate, Work | str] = {}
        self._texts: dict[Candidate, Printed] = {}
        self.most_costly = LOWERED

    def __call__(self, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        """The predicted seconds; None for one that cannot be lowered. OutOfTimeError if no time is left for them."""
        self.texts([each for each in candidates if self.is_costly(each) and each not in self._lowered])
        works = [self.work(each) for each in candidates]
        times = iter(self._model.seconds([work for work in works if work is not None], self._target))
        return [None if work is None else next(times) for work in works]

    def is_costly(self, candidate: Candidate) -> bool:
        """Whether it has to be lowered. That it was lowered before does not count: a search that was interrupted, and
        has forgotten that, is to go on in the same way."""
        return self._value(candidate) is None

    def work(self, candidate: Candidate) -> Work | None:
        """The work of a candidate that was predicted or lowered; None if it cannot be lowered."""
        lowered = self._lowered.get(candidate)
        return self._value(candidate) if lowered is None else lowered if isinstance(lowered, Work) else None

    def error(self, candidate: Candidate) -> str | None:
        """Why a candidate cannot be lowered."""
        lowered = self._lowered.get(candidate)
        return lowered if isinstance(lowered, str) else None

    def texts(self, candidates: Sequence[Candidate]) -> list[Printed]:
        """Their texts, from which they are built."""
        new = [each for each in dict.fromkeys(candidates) if each not in self._texts]
        for text in print_all(self._workers, self._task, new, self._left):
            self._texts[text.candidate] = text
            self._lowered[text.candidate] = text.work or text.error or "it has no work"
        return [self._texts[each] for each in candidates]

    def forget_texts(self) -> None:
        """Drops texts that will not be built."""
        self._texts.clear()

    @property
    def known(self) -> list[Candidate]:
        """The candidates whose works are known, or of which it is known that they have none."""
        return list(dict.fromkeys([*self._counted, *self._lowered]))

    @property
    def failed(self) -> int:
        """Candidates that could not be lowered."""
        return sum(isinstance(each, str) for each in self._lowered.values())

    def _value(self, candidate: Candidate) -> Work | None:
        """The work that a candidate's value says; None for templates, and for nests that only the kernel tells of:
        those with a reduction in lanes of vectors."""
        found = self._counted.get(candidate)
        if found is not None or self._task.search.by_name[candidate.program].template is not None:
            return found
        if self._left() <= 0:
            raise OutOfTimeError
        try:
            work = self._forecast.work(self._task.search.replay(candidate))
        except TreadleError:
            return None
        if not isinstance(work, Work):
            return None
        if len(self._counted) >= _KEPT:
            self._counted.clear()
        self._counted[candidate] = work
        return work


__all__ = ["LOWERED", "Predictions"]
