"""Entries of a database whose times are those of kernels that other sources wrote, as tasks to be timed anew."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from treadle.dialects.schedule import ProgramOp, TemplateOp, UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.schedule_select import check_entry
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.database import Database, Dispatched
from treadle.schedules.search.programs import decisions_of
from treadle.tuning.tasks import GroupTask
from treadle.tuning.workers import Machine

_NAME = "tuned"
"""Of the program that stands for an entry which is a template with its choices. No template is called so."""


@dataclass(frozen=True)
class StaleEntry:
    """A group's task with two programs, the default's and the entry's, and the entry as a candidate of that task."""

    task: GroupTask
    candidate: Candidate


def stale_entries(tasks: Sequence[GroupTask], database: Database, machine: Machine) -> list[StaleEntry]:
    """The entries of some groups that were measured with other sources of kernels than a machine's.

    One that is damaged, or that does not replay, is named in a warning on stderr and left out.
    """
    found: list[StaleEntry] = []
    for task in tasks:
        try:
            entry = database.find(task.digest, machine.hardware)
            if entry is None or entry.record.sources == machine.kernels:
                continue
            check_entry(entry, task.program.fused, machine.target, machine.hardware)
            if not isinstance(entry.schedule, Dispatched):
                found.append(_stale(task, entry.schedule))
        except TreadleError as error:
            print(f"warning: the entry of group {task} is left out: {error}", file=sys.stderr)
    return found


def _stale(task: GroupTask, schedule: UseAttr | ProgramOp) -> StaleEntry:
    """The entry as it is: its program may be one that no rule writes today, and its knobs others than are searched."""
    if isinstance(schedule, UseAttr):
        use = TemplateOp(schedule.template.data, list(schedule.knobs().items()))
        schedule = ProgramOp(_NAME, task.search.target.kind, [use])
    programs = task.search.by_name[task.default.program], schedule
    candidate = Candidate(schedule.sym_name.data, decisions_of(schedule))
    return StaleEntry(replace(task, search=Task(task.search.anchor, task.search.target, programs)), candidate)


__all__ = ["StaleEntry", "stale_entries"]
