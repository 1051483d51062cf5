"""Candidates of a group as shared libraries for the processor of the machine that builds them, in any process."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from treadle.artifact.manifest import KernelLaunch
from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import ENTRY
from treadle.backends.c.printer import print_host, print_kernels
from treadle.backends.cuda.compiler import Unit as CudaUnit
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.open_artifact import launch_of
from treadle.backends.cuda.write_artifact import printed_launches
from treadle.backends.program import Program, read_program
from treadle.compiler.pipeline import lower
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of, group_of
from treadle.passes.schedule.ranged_schedule import AtPoints, PointTimes
from treadle.passes.schedule.schedule_select import add_program
from treadle.schedules.joint import Adaption
from treadle.schedules.search.candidate import Candidate, CostModel, Task
from treadle.schedules.search.programs import taken
from treadle.schedules.work.gpu_work import AnyWork
from treadle.schedules.work.group import Group as WorkGroup
from treadle.schedules.work.lowered import count_gpu_work, count_work
from treadle.schedules.work.recorder import work_of
from treadle.target import Target, TargetKind
from treadle.tuning.device_timer import GpuLibrary
from treadle.tuning.tasks import GroupTask
from treadle.tuning.workers import Failed, OutOfTimeError, Workers, endless


@dataclass(frozen=True)
class Printed:
    """A candidate's text and work, or the reason why there is none.

    units: of C; kernels, launches: of CUDA, each launch of which names its kernel
    zeroed_bytes: of the memory that kernels find zero
    """

    candidate: Candidate
    units: tuple[Unit, ...] = ()
    work: AnyWork | None = None
    arena_bytes: int = 0
    error: str | None = None
    kernels: tuple[CudaUnit, ...] = ()
    launches: tuple[KernelLaunch, ...] = ()
    zeroed_bytes: int = 0


@dataclass(frozen=True)
class Built:
    """A candidate's library, or the reason why there is none."""

    candidate: Candidate
    library: bytes = b""
    arena_bytes: int = 0
    error: str | None = None


def printed(text: str, programs: Mapping[str, str], candidate: Candidate, target_text: str) -> Printed:
    """Lowers a candidate of a group; one that is not legal has an `error`.

    text, programs: of the group, and of its schedule programs by name, since modules do not travel between processes
    """
    target, context = Target.parse(target_text), treadle_context()
    module = Parser(context, text).parse_module()
    (op,) = Parser(context, programs[candidate.program]).parse_module().body.block.ops
    assert isinstance(op, ProgramOp)
    group_of(module).schedule = add_program(module, taken(op, candidate.decisions))
    try:
        lower(context, module, target, after="schedule", to="loops")
        (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
        found = Printed(candidate, work=_WORK[target.kind](kernel, target))
        lower(context, module, target, after="loops")
        return _PRINTED[target.kind](found, module, read_program(module))
    except TreadleError as error:
        return Printed(candidate, error=str(error))


def _with_c(found: Printed, module: ModuleOp, program: Program) -> Printed:
    return replace(found, units=(*print_kernels(module), print_host(module)), arena_bytes=program.arena_bytes)


def _with_cuda(found: Printed, module: ModuleOp, program: Program) -> Printed:
    units, launches = printed_launches(module, program)
    memory = {"arena_bytes": program.arena_bytes, "zeroed_bytes": program.zeroed_bytes}
    return replace(found, kernels=units, launches=launches, **memory)


_PRINTED: Mapping[TargetKind, Callable[[Printed, ModuleOp, Program], Printed]] = {"cpu": _with_c, "cuda": _with_cuda}
_WORK: Mapping[TargetKind, Callable[[FuncOp, Target], AnyWork]] = {
    "cpu": lambda kernel, target: count_work(kernel, target),
    "cuda": lambda kernel, target: count_gpu_work(kernel),
}


def built(given: Printed, target_text: str) -> Built:
    """Compiles the text of a candidate to a shared library; one that cannot be compiled has an `error`.

    TreadleError for what the machine lacks, such as room on its disk.
    """
    if given.error is not None:
        return Built(given.candidate, error=given.error)
    try:
        library = _library(given, Target.parse(target_text))
    except TreadleError as error:
        if _is_of_machine(error):
            raise
        return Built(given.candidate, error=str(error))
    return Built(given.candidate, library, given.arena_bytes)


def _library(given: Printed, target: Target) -> bytes:
    """Compiles a candidate's text. Raises what the compilers raise."""
    if given.units:
        return build_library(given.units, target=target).read_bytes()
    images = {each.name: compile_cubin(each, target).image for each in given.kernels}
    launches = tuple(launch_of(each, images[each.kernel]) for each in given.launches)
    return GpuLibrary(launches, given.zeroed_bytes).packed()


def _is_of_machine(error: TreadleError) -> bool:
    """Whether no candidate could be built: a file or the compiler cannot be used, or there is no room for what it
    writes."""
    full = os.strerror(errno.ENOSPC)
    return isinstance(error.__cause__, OSError) or any(full in text for text in (str(error), *_notes(error)))


def _notes(error: TreadleError) -> list[str]:
    return getattr(error, "__notes__", [])


# Candidates of a group, lowered and compiled by workers, in the order in which they are given.

Left = Callable[[], float]
"""Seconds that are left for what is done; OutOfTimeError is raised if they do not suffice."""


def print_all(
    workers: Workers, task: GroupTask, candidates: Sequence[Candidate], left: Left = endless
) -> list[Printed]:
    """Their texts and works; a candidate that is not legal, or that costs its worker, has an `error`."""
    return print_each(workers, [(task, candidate) for candidate in candidates], left)


def print_each(
    workers: Workers, candidates: Sequence[tuple[GroupTask, Candidate]], left: Left = endless
) -> list[Printed]:
    """The same of candidates of several groups."""
    programs = {
        task.digest: {name: str(program) for name, program in task.search.by_name.items()} for task, _ in candidates
    }
    given = [(task.text, programs[task.digest], candidate) for task, candidate in candidates]
    texts = workers.call_all(partial(_printed, target_text=workers.machine.target_text), given, left)
    return [
        Printed(candidate, error=text.reason) if isinstance(text, Failed) else text
        for (_, candidate), text in zip(candidates, texts, strict=True)
    ]


def _printed(given: tuple[str, Mapping[str, str], Candidate], target_text: str) -> Printed:
    return printed(*given, target_text)


def build_all(workers: Workers, texts: Sequence[Printed], left: Left = endless) -> list[Built]:
    """Their libraries; a candidate that cannot be compiled, or that costs its worker, has an `error`."""
    builds = workers.call_all(partial(built, target_text=workers.machine.target_text), texts, left)
    return [
        Built(text.candidate, error=build.reason) if isinstance(build, Failed) else build
        for text, build in zip(texts, builds, strict=True)
    ]


# Predicted times of one group's candidates, and the texts of those that are built.

_KEPT = 8192
"""Works that are kept; counting one again takes milliseconds."""


_BATCH = 8
"""Candidates that a worker counts in one call, which take it some 50 ms."""
_AT_ONCE = 16
"""Batches that workers are given together, of which those of many cores take one each."""


def _works(given: tuple[str, Mapping[str, str], Sequence[Candidate]], target_text: str) -> list[AnyWork | str]:
    """What candidates of a group do, or why they are not legal.

    text, programs: of the group, and of the candidates' schedule programs, by their names
    """
    text, programs, candidates = given
    group, target = _group(text), Target.parse(target_text)
    task = Task(group.anchor, target, tuple(map(_program, programs.values())))
    return [_work_or_error(group, task, each) for each in candidates]


@lru_cache(4)
def _group(text: str) -> WorkGroup:
    """The group of a program, of which a process counts many candidates."""
    return WorkGroup(anchor_of(group_of(Parser(treadle_context(), text).parse_module())))


@lru_cache(256)
def _program(text: str) -> ProgramOp:
    op = Parser(treadle_context(), text).parse_module().body.block.first_op
    assert isinstance(op, ProgramOp)
    return op


def _work_or_error(group: WorkGroup, task: Task, candidate: Candidate) -> AnyWork | str:
    try:
        return work_of(group, task.replay(candidate), task.target)
    except TreadleError as error:
        return str(error)


class Predictions:
    """What a cost model says of a group's candidates."""

    def __init__(
        self,
        task: GroupTask,
        workers: Workers,
        model: CostModel,
        left: Left = endless,
        adaption: Adaption | None = None,
    ):
        self._task, self._workers, self._model, self._left = task, workers, model, left
        self._adaption = Adaption() if adaption is None else adaption
        self._group, self._target = WorkGroup(task.search.anchor), task.search.target
        self._program_texts: dict[str, str] = {}
        self._counted: dict[Candidate, AnyWork | str] = {}
        self._texts: dict[Candidate, Printed] = {}
        self._failed: set[Candidate] = set()
        self._points = PointTimes.of(task.program.fused, task.points, self._target)
        self._at_points: dict[Candidate, AtPoints | None] = {}

    def __call__(self, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        """The predicted seconds; None for one that is not legal. OutOfTimeError if no time is left for them.

        Those of a range are the mean over the calls that its points stand for: what the model says of the micro-kernel,
        whose features are those of the whole anchor's kernel, times what the points take as a part of that, with their
        padding, and with the occupancy whose coefficient was learned. Source: DietCode (MLSys 2022), equation 3.
        """
        new = [each for each in dict.fromkeys(candidates) if each not in self._counted]
        if len(new) > _BATCH:
            self._count(new)
        works = [self.work(each) for each in candidates]
        times = iter(self._model.seconds([work for work in works if work is not None], self._target))
        seconds = [None if work is None else next(times) for work in works]
        if self._points is None:
            return seconds
        return [None if s is None else self._of_range(each, s) for each, s in zip(candidates, seconds, strict=True)]

    def _of_range(self, candidate: Candidate, seconds: float) -> float | None:
        found = self.at_points(candidate)
        return None if found is None else seconds * found.mean(self._adaption)

    def at_points(self, candidate: Candidate) -> AtPoints | None:
        """A candidate at the points of a range, as far as they are predicted; None without a range."""
        if candidate not in self._at_points:
            points = self._points
            found = None if points is None else points.of_candidate(candidate, self._task.search)
            self._at_points[candidate] = found
        return self._at_points[candidate]

    def work(self, candidate: Candidate) -> AnyWork | None:
        """The work of a candidate's kernel; None if it is not legal, or could not be lowered. OutOfTimeError if no time
        is left for counting it."""
        found = self._counted.get(candidate)
        if found is None:
            if self._left() <= 0:
                raise OutOfTimeError
            if len(self._counted) >= _KEPT:
                self._counted.clear()
            found = self._counted[candidate] = self._work(candidate)
        return None if isinstance(found, str) else found

    def _count(self, candidates: Sequence[Candidate]) -> None:
        """Has the workers count what candidates do; what a lost one was to count is counted here when it is asked. What
        was counted when the time ends is kept: calls take less than a second, and none is abandoned."""
        if len(self._counted) >= _KEPT:
            self._counted.clear()
        batches = [candidates[n : n + _BATCH] for n in range(0, len(candidates), _BATCH)]
        for first in range(0, len(batches), _AT_ONCE):
            if self._left() <= 0:
                raise OutOfTimeError
            some = batches[first : first + _AT_ONCE]
            given = [(self._task.text, self._programs(batch), tuple(batch)) for batch in some]
            found = self._workers.call_all(partial(_works, target_text=str(self._target)), given)
            for batch, works in zip(some, found, strict=True):
                if not isinstance(works, Failed):
                    self._counted |= zip(batch, works, strict=True)

    def _programs(self, candidates: Sequence[Candidate]) -> dict[str, str]:
        """The texts of candidates' programs."""
        names = dict.fromkeys(each.program for each in candidates)
        return {name: self._text_of(name) for name in names}

    def _text_of(self, name: str) -> str:
        if name not in self._program_texts:
            self._program_texts[name] = str(self._task.search.by_name[name])
        return self._program_texts[name]

    def _work(self, candidate: Candidate) -> AnyWork | str:
        return _work_or_error(self._group, self._task.search, candidate)

    def error(self, candidate: Candidate) -> str | None:
        """Why a candidate has no work, where that is known."""
        found = self._counted.get(candidate)
        return found if isinstance(found, str) else None

    def texts(self, candidates: Sequence[Candidate]) -> list[Printed]:
        """Their texts, from which they are built."""
        new = [each for each in dict.fromkeys(candidates) if each not in self._texts]
        for text in print_all(self._workers, self._task, new, self._left):
            self._texts[text.candidate] = text
            if text.error is not None:
                self._counted[text.candidate] = text.error
                self._failed.add(text.candidate)
        return [self._texts[each] for each in candidates]

    def forget_texts(self) -> None:
        """Drops texts that will not be built."""
        self._texts.clear()

    @property
    def known(self) -> list[Candidate]:
        """The candidates whose works are known, or of which it is known that they have none."""
        return list(self._counted)

    @property
    def failed(self) -> int:
        """Candidates that could not be lowered."""
        return len(self._failed)


__all__ = [
    "ENTRY",
    "Built",
    "Left",
    "Predictions",
    "Printed",
    "build_all",
    "built",
    "print_all",
    "print_each",
    "printed",
]
