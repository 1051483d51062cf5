"""Candidates of a group as shared libraries for the processor of the machine that builds them, in any process."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.parser import Parser

from treadle.backends.c.compiler import Unit, build_library
from treadle.backends.c.executor import ENTRY
from treadle.backends.c.printer import print_host, print_kernels
from treadle.backends.program import read_program
from treadle.compiler import lower
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp
from treadle.errors import TreadleError
from treadle.passes.loop.count_work import count_work
from treadle.passes.schedule.group_program import group_of
from treadle.passes.schedule.schedule_select import add_program
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.programs import taken
from treadle.schedules.search.work import Work
from treadle.target import Target


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


__all__ = ["ENTRY", "Built", "Printed", "built", "printed"]
