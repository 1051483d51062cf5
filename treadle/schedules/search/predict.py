"""Predicted times of candidates as values: before there is a kernel, in a fraction of a millisecond."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.schedules.gpu_work import GpuWork
from treadle.schedules.search.analytic import cpu_seconds, gpu_seconds
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.gpu_nest_work import gpu_work_of
from treadle.schedules.search.group_cost import GroupCost, group_cost
from treadle.schedules.search.nest_work import work_of
from treadle.schedules.search.programs import Replayed
from treadle.schedules.search.work import Work
from treadle.schedules.templates import TEMPLATES


class Forecast:
    """Predicts the times of one task's candidates, as far as their values say what their kernels do."""

    most_costly: int = 0

    def __init__(self, task: Task):
        self._task = task

    @cached_property
    def _cost(self) -> GroupCost:
        return group_cost(self._task.anchor)

    def seconds(self, candidate: Candidate) -> float | None:
        """The predicted seconds; None where only the kernel says. TreadleError for a candidate that is not legal."""
        return self.seconds_of(self._task.replay(candidate))

    def __call__(self, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        """The predicted seconds of legal candidates; None where only the kernel says."""
        found: list[float | None] = []
        for candidate in candidates:
            try:
                found.append(self.seconds(candidate))
            except TreadleError:
                found.append(None)
        return found

    def is_costly(self, candidate: Candidate) -> bool:
        """No prediction of this kind takes long."""
        del candidate
        return False

    def seconds_of(self, replayed: Replayed) -> float | None:
        """The same for what a kernel is written from. TreadleError for a nest that is not counted."""
        work, target = self.work(replayed), self._task.target
        if work is None:
            return None
        return cpu_seconds(work, target) if isinstance(work, Work) else gpu_seconds(work, target)

    def work(self, replayed: Replayed) -> Work | GpuWork | None:
        """The work of a kernel; None where only the kernel says. TreadleError for a nest that is not counted."""
        target = self._task.target
        if not isinstance(replayed, UseAttr):
            return gpu_work_of(replayed, self._cost) if target.is_cuda else work_of(replayed, self._cost, target)
        return TEMPLATES[replayed.template.data].work(self._task.anchor, replayed.knobs(), target)


__all__ = ["Forecast"]
