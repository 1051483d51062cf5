"""How much faster a group could become: the roofline of what its model's groups reach.

Source: Williams, Waterman and Patterson, Roofline, 2009. Nothing is measured for it: the peaks are the highest rates
among the groups themselves. Operands that a cache holds make the bandwidth's peak too high, which leaves groups more
headroom than they have, never less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.passes.schedule.schedule_instantiate import operations_of
from treadle.target import Target
from treadle.tuning.tasks import GroupTask

_BANDWIDTH = 2e10
"""Bytes a second of a processor's memory; assumed, since nothing but an order depends on it."""


@dataclass(frozen=True)
class Headroom:
    """operations: of a second, by the definitions; nbytes: of operands and results that a second moves"""

    operations: float
    nbytes: float

    @classmethod
    def of(cls, timed: Sequence[tuple[GroupTask, float]]) -> Headroom:
        """The highest rates of some tasks with their seconds."""
        return cls(
            max((operations_of(task.program.fused) / seconds for task, seconds in timed), default=0.0),
            max((_nbytes(task) / seconds for task, seconds in timed), default=0.0),
        )

    def __call__(self, task: GroupTask, seconds: float) -> float:
        """The fraction of its time that a task would gain at the higher of its two bounds, from 0 to 1."""
        bounds = (
            (operations_of(task.program.fused), self.operations),
            (_nbytes(task), self.nbytes),
        )
        least = max((amount / rate for amount, rate in bounds if rate), default=0.0)
        return max(0.0, 1 - least / seconds)


def least_seconds(task: GroupTask, target: Target) -> float:
    """About what a kernel of a task takes at least, by which tasks are ordered before anything is timed."""
    return max(operations_of(task.program.fused) / target.peak_f32, _nbytes(task) / _BANDWIDTH)


def _nbytes(task: GroupTask) -> int:
    return sum(spec.num_bytes for spec in (*task.inputs, *task.outputs))


__all__ = ["Headroom", "least_seconds"]
