"""Tuning tasks of a model: its distinct groups, and the schedule programs for each."""

from __future__ import annotations

import importlib
import logging
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp

from treadle.backends.interface import TensorSpec
from treadle.dialects.graph import FusedOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.location import name_nodes
from treadle.dialects.schedule import DispatchAttr, ProgramOp, TemplateOp, UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.construct import ProgramsOf, decision, default_programs, search_of
from treadle.passes.schedule.instance import GroupProgram, group_program, ranged_group_program
from treadle.passes.schedule.ranged_schedule import module_points, point_defaults, ranged_schedule, symbols_of
from treadle.passes.schedule.schedule_select import check_entry, default_schedule
from treadle.schedules.joint import Point, Weights, checked
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.database import Database, Dispatched
from treadle.schedules.search.programs import decisions_of
from treadle.shapes.dim import parse_dim
from treadle.target import Target
from treadle.tuning.workers import Machine, Workers, workers_of

POINTS_TIMED = 6
"""Points at which a group of a ranged model is timed: they share the two seconds of a round of eight candidates."""


@dataclass(frozen=True)
class GroupTask:
    """A group to be tuned, and the number of groups of the model that are equal to it.

    text:   the program as text, for other processes
    count:  equal groups, this one included
    nodes:  the nodes of the model that each of them computes, as texts
    constants: the numbers of the inputs that are weights
    search: its anchor and the schedule programs
    default: the candidate that gives the schedule without a search
    points: the calls that it is timed for, of a group of a ranged model
    seeds: candidates that are timed first; extents: those of a call that is being timed
    """

    digest: str
    label: str
    text: str
    count: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: tuple[int, ...]
    program: GroupProgram
    search: Task
    default: Candidate
    points: tuple[Point, ...] = ()
    seeds: tuple[Candidate, ...] = ()
    extents: tuple[int, ...] | None = None
    nodes: tuple[str, ...] = ()

    @property
    def texts(self) -> dict[str, str]:
        """The texts of the programs that are no template's."""
        return {name: str(program) for name, program in self.search.by_name.items() if program.template is None}

    def __str__(self) -> str:
        shapes = " x ".join("x".join(map(str, spec.shape)) for spec in self.outputs)
        return f"{self.label} {shapes}"


def tasks_of(
    module: ModuleOp, target: Target, programs_of: ProgramsOf = default_programs, weights: Weights | None = None
) -> list[GroupTask]:
    """The tasks of a module after stage `fuse`, in the order of their first groups.

    weights: how often values of the symbols of a ranged model occur; TreadleError as `points_of` raises it
    """
    counts: Counter[str] = Counter()
    groups: dict[str, GroupProgram] = {}
    nodes: dict[str, list[str]] = {}
    found = [op for op in module.walk() if isinstance(op, FusedOp)]
    if weights:
        checked(weights, [parse_dim(text) for text in symbols_of(found[0])] if found else [])
    for fused in found:
        group = ranged_group_program(fused) or group_program(fused)
        digest = group.digest()
        counts[digest] += 1
        groups.setdefault(digest, group)
        nodes.setdefault(digest, []).append(name_nodes(fused.location))
    tasks = [_task(digest, group, counts[digest], target, programs_of) for digest, group in groups.items()]
    return [_with_points(replace(task, nodes=tuple(nodes[task.digest])), target, weights) for task in tasks]


def schedule_of(task: GroupTask, candidate: Candidate) -> UseAttr | ProgramOp:
    """What a database says of a candidate: a template with its choices, or the program with its decisions."""
    return decision(task.search, candidate)


def _with_points(task: GroupTask, target: Target, weights: Weights | None) -> GroupTask:
    """A task with the calls that it is timed for, if its group is of a ranged model, and with candidates to begin with:
    the kernels that it has without a search, and what templates take by default at these points."""
    points = tuple(point for point in module_points(task.program.fused, weights, POINTS_TIMED) if point.weight)
    if not points:
        return task
    seeds: dict[Candidate, None] = {}
    fused = task.program.fused
    untuned = ranged_schedule(fused, target, default_schedule(fused, target))
    kernels = untuned.alternatives.data if isinstance(untuned, DispatchAttr) else (untuned,)
    uses = [each for each in kernels if isinstance(each, UseAttr)]
    for use in [*uses, *point_defaults(fused, points, target)]:
        if task.search.tries(use):
            seeds[task.search.candidate(use)] = None
    legal = [each for each in seeds if each != task.default and _is_legal(task.search, each)]
    return replace(task, points=points, seeds=tuple(legal))


def _is_legal(search: Task, candidate: Candidate) -> bool:
    try:
        search.replay(candidate)
    except TreadleError:
        return False
    return True


def _task(digest: str, program: GroupProgram, count: int, target: Target, programs_of: ProgramsOf) -> GroupTask:
    main = program.module.body.block.first_op
    if not isinstance(main, FuncOp):
        raise TreadleError("the program has no @main", "tune")
    inputs, outputs = (tuple(each.data) for each in (main.function_type.inputs, main.function_type.outputs))
    specs = [
        tuple(
            TensorSpec(f"{kind}{n}", type.get_shape(), numpy_dtype(type.get_element_type()))
            for n, type in enumerate(types)
            if isinstance(type, TensorType)
        )
        for kind, types in (("input", inputs), ("output", outputs))
    ]
    search, default = search_of(program.fused, default_schedule(program.fused, target), target, programs_of)
    return GroupTask(
        digest, program.label, program.text(), count, specs[0], specs[1], program.constants, program, search, default
    )


# A Dask cluster as workers that build and measure: `treadle tune --scheduler tcp://...`.
#
# Dask runs what a lost worker was doing on another one, up to a few times; then the call fails, which costs a
# candidate.

_CONNECT_SECONDS = 10
_WORKERS_SECONDS = 30
_ACCEPTED = "the address of a running `dask scheduler`, such as tcp://127.0.0.1:8786"


@contextmanager
def cluster(address: str) -> Generator[Workers]:
    """The workers of a Dask scheduler. TreadleError if Dask is not installed, or if no scheduler or worker answers."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise TreadleError("Dask is not installed", "--scheduler", "pip install 'treadle[dask]'") from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what it says of lost workers is no trouble here
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise TreadleError(f"no scheduler answers: {_first_line(error)}", address, _ACCEPTED) from error
    try:
        _wait_for_workers(client, address)
        yield workers_of(client.get_executor(pure=False))
    finally:
        client.close()


def _wait_for_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_WORKERS_SECONDS)
    except TimeoutError as error:
        raise TreadleError("the scheduler has no workers", address, f"`dask worker {address}` somewhere") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# Entries of a database whose times are those of kernels that other sources wrote, as tasks to be timed anew.

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
