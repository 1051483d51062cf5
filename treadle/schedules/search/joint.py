"""Joint search: one task for several static shapes of an operator, whose kernels are chosen and dispatched together.

Source: DietCode (MLSys 2022), sections 3.2 and 4.3. Tiles of schedule programs do not depend on extents, so that one
candidate is a kernel for every shape: a candidate is predicted once a shape, instead of one search a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from treadle.errors import TreadleError
from treadle.schedules.joint import Tree, chosen_kernels, grown_tree
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.predict import Forecast


@dataclass(frozen=True)
class Instance:
    """A static shape: the values of the symbols, the task with these extents, and how often it occurs."""

    symbols: tuple[int, ...]
    task: Task
    weight: float = 1.0


@dataclass(frozen=True)
class Joint:
    """kernels: those that were chosen, most useful first; tree: which of them computes a shape.

    seconds: of every kernel, predicted for every instance
    """

    kernels: tuple[Candidate, ...]
    tree: Tree[Candidate]
    seconds: dict[Candidate, tuple[float, ...]]


def joint_choice(instances: Sequence[Instance], candidates: Sequence[Candidate]) -> Joint:
    """The kernels for some shapes, from candidates that are ranked by the predictor on each of them.

    A candidate that is not legal for a shape is not used there. TreadleError if a shape has
    no candidate.
    """
    forecasts = [Forecast(instance.task) for instance in instances]
    table = {each: tuple(_seconds(forecast, each) for forecast in forecasts) for each in candidates}
    chosen = chosen_kernels(table, [instance.weight for instance in instances])
    usable = {kernel: table[kernel] for kernel in chosen}
    return Joint(tuple(chosen), grown_tree([instance.symbols for instance in instances], usable), usable)


def _seconds(forecast: Forecast, candidate: Candidate) -> float:
    try:
        return forecast.seconds(candidate)
    except TreadleError:
        return inf


__all__ = ["Instance", "Joint", "joint_choice"]
