"""The search over groups of a ranged model: every candidate is timed at some points of the range, and kernels are
dispatched by what they take there.

Source: DietCode (MLSys 2022), sections 3.2 and 4.3: all shapes search the same space together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from treadle.dialects.schedule import MOST_KERNELS
from treadle.errors import TreadleError
from treadle.schedules.joint import Point, chosen_dispatch, predicted
from treadle.schedules.search.candidate import Candidate, Measured
from treadle.schedules.search.database import Dispatched
from treadle.shapes.decision_tree import kernel_for
from treadle.tuning.candidates import Built, Printed
from treadle.tuning.group_search import LEAST_GAIN, Group
from treadle.tuning.measure import Timing
from treadle.tuning.tasks import GroupTask, schedule_of
from treadle.tuning.tuner import Tuner

Times = tuple[float, ...]
"""Seconds at each point of a task."""


class RangedTuner(Tuner):
    """Tunes groups at the points of their tasks; a candidate's time is the mean over the calls that these stand for.

    Every candidate that is timed counts for all points. In the end kernels are chosen by the tables, timed together
    again, and written as a dispatch if they are faster than the default. A search that goes on after an interruption
    dispatches only among what it timed itself.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._tables: dict[str, dict[Candidate, Times]] = {}

    def _first(self, group: Group, text: Printed, build: Built) -> None:
        """After the default, what templates take by default at the points."""
        super()._first(group, text, build)
        seeds = [each for each in group.task.seeds if group.search.explored.is_new(each)]
        if not seeds:
            return
        group.search.explored.take(seeds)
        texts = group.search.predictions.texts(seeds)
        self._timed_round(group, list(zip(texts, group.search.predictions(seeds), strict=True)))

    def _measure(self, task: GroupTask, builds: Sequence[Built], seconds: float) -> list[Timing]:
        if not task.points:
            return super()._measure(task, builds, seconds)
        each = [
            super(RangedTuner, self)._measure(replace(task, extents=point.extents), builds, seconds / len(task.points))
            for point in task.points
        ]
        found = [_combined([timings[n] for timings in each], task.points) for n in range(len(builds))]
        self._note(task, {build.candidate: times for build, (_, times) in zip(builds, found, strict=True) if times})
        return [timing for timing, _ in found]

    def _note(self, task: GroupTask, times: Mapping[Candidate, Times]) -> None:
        """Adds times to a task's table, relative to what the first one that is known took before: the machine may have
        become slower."""
        table = self._tables.setdefault(task.digest, {})
        known = next((candidate for candidate in times if candidate in table), None)
        factors = (
            (1.0,) * len(task.points)
            if known is None
            else tuple(old / new for old, new in zip(table[known], times[known], strict=True))
        )
        for candidate, each in times.items():
            scaled = tuple(seconds * factor for seconds, factor in zip(each, factors, strict=True))
            table.setdefault(candidate, scaled)
        self._adapt()

    def _adapt(self) -> None:
        """Learns the coefficient of the occupancy from all that was timed at points."""
        searches = {group.task.digest: group.search.predictions for group in self.groups}
        records = [
            (found.points, times)
            for digest, table in self._tables.items()
            for candidate, times in table.items()
            if (found := searches[digest].at_points(candidate)) is not None
        ]
        self.adaption.learn(records)

    def _of_kernel(self, group: Group, result: Measured) -> float:
        """The micro-kernel's part: what was measured without what the points are predicted to take of the whole
        anchor's kernel, so that features of a kernel explain one factor for all calls."""
        seconds, found = super()._of_kernel(group, result), group.search.predictions.at_points(result.candidate)
        return seconds if found is None else seconds / found.mean(self.adaption)

    def _confirm(self, group: Group) -> None:
        """Times the default, the kernels that the table says, and the fastest one of each point, longer than before,
        and chooses again among these."""
        if not group.task.points or group.default_seconds is None:
            super()._confirm(group)
            return
        self._show(self.groups, group)
        table, points, default = self._tables.get(group.task.digest, {}), group.task.points, group.default
        if default not in table:
            return
        chosen = chosen_dispatch(table, points, LEAST_GAIN, LEAST_GAIN, MOST_KERNELS, default)
        fastest = [min(table, key=lambda each, at=n: table[each][at]) for n in range(len(points))]
        kernels = list(dict.fromkeys([default, *chosen.kernels, *fastest]))
        self._tables[group.task.digest] = {}
        timings = self._compared(group, kernels) if len(kernels) > 1 else []
        again = self._tables[group.task.digest] or {default: table[default]}
        if any(timing.seconds is None for timing in timings[:1]) or default not in again:
            raise TreadleError(f"the default schedule cannot be timed: {timings[0].error}", f"group {group.task}")
        final = chosen_dispatch(again, points, LEAST_GAIN, LEAST_GAIN, MOST_KERNELS, default)
        taken = [final.kernels[kernel_for(final.tree, point.extents)] for point in points]
        group.default_seconds = _mean(again[default], points)
        group.best_seconds = _mean([again[kernel][n] for n, kernel in enumerate(taken)], points)
        group.best, group.confirmed = final.kernels[0], final.kernels != (default,)
        schedules = tuple(schedule_of(group.task, kernel) for kernel in final.kernels)
        several = Dispatched(final.tree, schedules, predicted(again, final.kernels, points))
        self._write(group, schedules[0] if len(schedules) == 1 else several)


def _combined(timings: Sequence[Timing], points: Sequence[Point]) -> tuple[Timing, Times | None]:
    """The mean over points, and the times at each; an error at any point is the candidate's."""
    seconds = [timing.seconds for timing in timings if timing.seconds is not None]
    if len(seconds) < len(points):
        return next(timing for timing in timings if timing.seconds is None), None
    return Timing(_mean(seconds, points)), tuple(seconds)


def _mean(seconds: Sequence[float], points: Sequence[Point]) -> float:
    return sum(each * point.weight for each, point in zip(seconds, points, strict=True))


__all__ = ["RangedTuner"]
