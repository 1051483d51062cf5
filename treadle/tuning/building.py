"""Candidates of a group, lowered and compiled by workers, in the order in which they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from treadle.schedules.search.candidate import Candidate
from treadle.tuning.candidates import Built, Printed, built, printed
from treadle.tuning.tasks import GroupTask
from treadle.tuning.workers import Failed, Workers, endless

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


__all__ = ["Left", "build_all", "print_all", "print_each"]
