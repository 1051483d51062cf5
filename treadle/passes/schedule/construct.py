"""Chooses a group's schedule by predicted time, without building or timing a kernel.

Source: Gensor (2025), section IV, for the walk; Hidet (ASPLOS 2023), section 4.3, for enumerating a space. Both rank by
the cost models of `treadle.schedules.search.predict`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from treadle.dialects.graph import FusedOp
from treadle.dialects.schedule import ProgramOp, UseAttr
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.rules.programs import programs
from treadle.schedules.rules.templates import templates
from treadle.schedules.rules.tiling import default_rules
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.programs import taken, template_program
from treadle.schedules.search.strategies import STRATEGIES
from treadle.schedules.search.strategy import Explored
from treadle.schedules.template import Anchor
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

ProgramsOf: TypeAlias = Callable[[Anchor, Target], Sequence[ProgramOp]]
"""Gives the schedule programs among which an anchor's schedule is searched."""


def default_programs(anchor: Anchor, target: Target) -> Sequence[ProgramOp]:
    """The programs that the default rules write."""
    return programs(anchor, target, default_rules(target))


def template_programs(anchor: Anchor, target: Target) -> Sequence[ProgramOp]:
    """The programs of the templates that fit, whose spaces can be enumerated."""
    return programs(anchor, target, (templates,))


def search_of(
    fused: FusedOp, default: UseAttr, target: Target, programs_of: ProgramsOf = default_programs
) -> tuple[Task, Candidate]:
    """The programs of a group, the default schedule's among them, and that schedule as a candidate."""
    anchor = anchor_of(fused)
    found = list(programs_of(anchor, target))
    if all(program.sym_name.data != default.template.data for program in found):
        found.append(template_program(TEMPLATES[default.template.data], anchor, target))
    task = Task(anchor, target, tuple(found))
    return task, task.candidate(default)


def decision(task: Task, candidate: Candidate) -> UseAttr | ProgramOp:
    """What stands on a group for a candidate: a template with its choices, or the program with its decisions."""
    replayed = task.replay(candidate)
    return replayed if isinstance(replayed, UseAttr) else taken(task.by_name[candidate.program], candidate.decisions)


@dataclass(frozen=True)
class Constructed:
    """The candidate that is predicted to be fastest, be it the default; predicted seconds of it and of the default."""

    candidate: Candidate
    seconds: float
    default_seconds: float


def constructed(task: Task, default: Candidate, strategy: str, seed: str = "0") -> Constructed:
    """What a strategy proposes first, if it is predicted to be faster than the default, else the default.

    strategy: a name of `STRATEGIES`. The same arguments give the same candidate. TreadleError if the default cannot be
    predicted.
    """
    forecast = Forecast(task)
    explored, known = Explored(task), forecast.seconds(default)
    explored.take([default])
    proposed = STRATEGIES[strategy](explored, forecast, seed).propose(1)
    times = dict(zip(proposed, forecast(proposed), strict=True))
    best = min(proposed, key=lambda each: _or_infinite(times[each]), default=default)
    seconds = _or_infinite(times.get(best))
    return Constructed(best, seconds, known) if seconds < known else Constructed(default, known, known)


def _or_infinite(seconds: float | None) -> float:
    return inf if seconds is None else seconds


__all__ = ["Constructed", "ProgramsOf", "constructed", "decision", "default_programs", "search_of", "template_programs"]
