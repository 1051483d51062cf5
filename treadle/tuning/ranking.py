"""Ranks a group's schedules for a GPU by predicted time, without a device."""

from __future__ import annotations

from xdsl.parser import Parser

from treadle.compiler import lower
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.passes.loop.count_gpu_work import count_gpu_work
from treadle.passes.schedule.group_program import group_of
from treadle.passes.schedule.schedule_select import add_program
from treadle.schedules.search.analytic import gpu_seconds
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.programs import taken
from treadle.tuning.tasks import GroupTask


def ranked_for_gpu(task: GroupTask) -> list[tuple[Candidate, float]]:
    """Every candidate of the group's programs with its predicted seconds, fastest first; equal ones in their order.

    A candidate whose value does not say what its kernel does is lowered, which takes tenths of a second instead of less
    than a millisecond.
    """
    forecast, found = Forecast(task.search), list[tuple[Candidate, float]]()
    for candidate in task.search.distinct():
        (seconds,) = forecast([candidate])
        found.append((candidate, counted_seconds(task, candidate) if seconds is None else seconds))
    return sorted(found, key=lambda pair: pair[1])


def counted_seconds(task: GroupTask, candidate: Candidate) -> float:
    """The predicted seconds by the work that is counted on the kernel, for a GPU. TreadleError if it cannot be
    lowered."""
    context, target = treadle_context(), task.search.target
    module = Parser(context, task.text).parse_module()
    group_of(module).schedule = add_program(module, taken(task.search.by_name[candidate.program], candidate.decisions))
    lower(context, module, target, after="schedule", to="loops")
    kernels = [op for op in module.walk() if isinstance(op, FuncOp)]
    return sum(gpu_seconds(count_gpu_work(kernel), target) for kernel in kernels)


__all__ = ["counted_seconds", "ranked_for_gpu"]
