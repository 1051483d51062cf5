"""Chooses a group's schedule by predicted time, without building or timing a kernel.

Source: Gensor (2025), section IV, for the walk, and figure 11 for ranges; Hidet (ASPLOS 2023), section 4.3, for
enumerating a space; DietCode (MLSys 2022), section 4.3, for kernels that serve a range. All rank by the cost models of
`treadle.schedules.search.predict`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Protocol, TypeAlias

from treadle.dialects.graph import FusedOp
from treadle.dialects.schedule import MOST_KERNELS, ProgramOp, UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.passes.schedule.ranged_schedule import LEAST_GAIN as LEAST_GAIN_OF_KERNEL
from treadle.passes.schedule.ranged_schedule import LEAST_LOSS
from treadle.schedules.joint import Point, chosen_dispatch, predicted
from treadle.schedules.rules.programs import programs
from treadle.schedules.rules.templates import templates
from treadle.schedules.rules.tiling import default_rules
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.database import Dispatched, Schedule
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.programs import taken, template_program
from treadle.schedules.search.strategies import STRATEGIES
from treadle.schedules.search.strategy import Explored
from treadle.schedules.template import Anchor
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

LEAST_GAIN = 0.05
"""Of a schedule that is taken for its predicted time alone. Of 17 spaces that were timed on an H100 and an H200, what
is so chosen takes 1.09 times as long as the best schedule, in the geometric mean, and the default 1.14; at worst 1.10
times as long as the default (`python -m benchmarks.space_correlation benchmarks/results/gpu-spaces-*.json`)."""


def is_worth_it(seconds: float, default: float) -> bool:
    """Whether a schedule is taken for its predicted seconds, given those of the default."""
    return seconds < (1 - LEAST_GAIN) * default


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


def constructed(task: Task, default: Candidate, strategy: str, seed: str = "0") -> Candidate:
    """What a strategy proposes first, if it is predicted to be worth it, else the default.

    strategy: a name of `STRATEGIES`. The same arguments give the same candidate. TreadleError if the default cannot be
    predicted.
    """
    forecast = Forecast(task)
    explored, known = Explored(task), forecast.seconds(default)
    explored.take([default])
    proposed = STRATEGIES[strategy](explored, forecast, seed).propose(1)
    times = zip(proposed, forecast(proposed), strict=True)
    return next((each for each, seconds in times if seconds is not None and is_worth_it(seconds, known)), default)


# Groups of ranged models: the construction looks at some calls, and a few kernels of what it finds serve the range.

_CONSTRUCTED_AT = 4
"""Points of a range, its ends among them, at which a kernel is constructed: each takes as long as a static group."""


class PointForecast(Protocol):
    """Predicts a task's candidates at points of a range."""

    def at(self, candidate: Candidate, search: Task, number: int) -> float:
        """The predicted seconds at a point; infinite where nothing predicts them. TreadleError for a candidate that is
        not legal."""
        ...


def constructed_range(
    task: Task,
    known: Sequence[Candidate],
    points: Sequence[Point],
    times: PointForecast,
    strategy: str,
    seed: str = "0",
) -> Schedule | None:
    """The kernels of a group of a ranged model, with a tree over extents where there are several; None where what is
    constructed gains nothing over the known ones.

    A strategy proposes one candidate for each of some points, by the times there; all of them, and the known ones, are
    then predicted at every point, and those that serve the range are taken as without a construction.
    known: the kernels that the group has without a construction, the default first
    """

    def seconds(number: int, candidate: Candidate) -> float:
        try:
            return times.at(candidate, task, number)
        except TreadleError:
            return inf

    def forecast(number: int, candidates: Sequence[Candidate]) -> list[float | None]:
        found = (seconds(number, each) for each in candidates)
        return [each if each < inf else None for each in found]

    table = {each: [seconds(n, each) for n in range(len(points))] for each in known}
    if inf in table[known[0]]:
        return None
    for number in spread(len(points)):
        explored = Explored(task)
        explored.take(known)
        for each in STRATEGIES[strategy](explored, partial(forecast, number), seed).propose(1):
            if each not in table:
                table[each] = [seconds(n, each) for n in range(len(points))]
    chosen = chosen_dispatch(table, points, LEAST_GAIN_OF_KERNEL, LEAST_LOSS, MOST_KERNELS, known[0])
    if set(chosen.kernels) <= set(known):
        return None
    kernels = tuple(decision(task, each) for each in chosen.kernels)
    several = Dispatched(chosen.tree, kernels, predicted(table, chosen.kernels, points))
    return kernels[0] if len(kernels) == 1 else several


def spread(count: int) -> list[int]:
    """The numbers of the points, of so many, at which kernels are constructed."""
    return sorted({round((count - 1) * n / (_CONSTRUCTED_AT - 1)) for n in range(_CONSTRUCTED_AT)})


__all__ = [
    "PointForecast",
    "ProgramsOf",
    "constructed",
    "constructed_range",
    "decision",
    "default_programs",
    "is_worth_it",
    "search_of",
    "spread",
    "template_programs",
]
