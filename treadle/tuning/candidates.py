"""Candidates of a group as shared libraries for the processor of the machine that builds them, in any process."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from xdsl.parser import Parser

from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import ENTRY
from treadle.backends.c.printer import print_host, print_kernels
from treadle.backends.program import read_program
from treadle.compiler.pipeline import lower
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import group_of
from treadle.passes.schedule.schedule_select import add_program
from treadle.schedules.search.candidate import Candidate, CostModel
from treadle.schedules.search.predict import Forecast
from treadle.schedules.search.programs import taken
from treadle.schedules.work.cpu_work import Work
from treadle.schedules.work.lowered import count_work
from treadle.target import Target
from treadle.tuning.tasks import GroupTask
from treadle.tuning.workers import Failed, OutOfTimeError, Workers, endless


@dataclass(frozen=True)
class Printed:
    """A candidate's C text and work, or the reason why there is none."""

    candidate: Candidate
    units: tuple[Unit, ...] = ()
    work: Work | None = None
    arena_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Built:
    """A candidate's library as bytes, or the reason why there is none."""

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
        work = count_work(kernel, target.cores)
        lower(context, module, target, after="loops")
        units = (*print_kernels(module), print_host(module))
        return Printed(candidate, units, work, read_program(module).arena_bytes)
    except TreadleError as error:
        return Printed(candidate, error=str(error))


def built(given: Printed, target_text: str) -> Built:
    """Compiles the text of a candidate to a shared library; one that cannot be compiled has an `error`.

    TreadleError for what the machine lacks, such as room on its disk.
    """
    if given.error is not None:
        return Built(given.candidate, error=given.error)
    try:
        library = build_library(given.units, target=Target.parse(target_text))
    except TreadleError as error:
        if _is_of_machine(error):
            raise
        return Built(given.candidate, error=str(error))
    return Built(given.candidate, library.read_bytes(), given.arena_bytes)


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


class Predictions:
    """What a cost model says of a group's candidates."""

    def __init__(self, task: GroupTask, workers: Workers, model: CostModel, left: Left = endless):
        self._task, self._workers, self._model, self._left = task, workers, model, left
        self._forecast, self._target = Forecast(task.search), task.search.target
        self._counted: dict[Candidate, Work | str] = {}
        self._texts: dict[Candidate, Printed] = {}
        self._failed: set[Candidate] = set()

    def __call__(self, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        """The predicted seconds; None for one that is not legal. OutOfTimeError if no time is left for them."""
        works = [self.work(each) for each in candidates]
        times = iter(self._model.seconds([work for work in works if work is not None], self._target))
        return [None if work is None else next(times) for work in works]

    def work(self, candidate: Candidate) -> Work | None:
        """The work of a candidate's kernel; None if it is not legal, or could not be lowered. OutOfTimeError if no time
        is left for counting it."""
        found = self._counted.get(candidate)
        if found is None:
            if self._left() <= 0:
                raise OutOfTimeError
            if len(self._counted) >= _KEPT:
                self._counted.clear()
            found = self._counted[candidate] = self._work(candidate)
        return found if isinstance(found, Work) else None

    def _work(self, candidate: Candidate) -> Work | str:
        try:
            work = self._forecast.work(self._task.search.replay(candidate))
        except TreadleError as error:
            return str(error)
        assert isinstance(work, Work), "candidates for GPUs are not measured here"
        return work

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
