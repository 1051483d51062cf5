"""Candidates of a group, lowered and compiled by workers, in the order in which they are given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from treadle.schedules.search.candidate import Candidate
from treadle.tuning.candidates import Built, Printed, built, printed
from treadle.tuning.tasks import GroupTask
from treadle.tuning.workers import Failed, Workers


def print_all(workers: Workers, task: GroupTask, candidates: Sequence[Candidate]) -> list[Printed]:
    """Their texts and works; a candidate that is not legal, or that costs its worker, has an `error`."""
    programs = {name: str(program) for name, program in task.search.by_name.items()}
    lowered = partial(printed, task.text, programs, target_text=workers.machine.target_text)
    texts = workers.call_all(lowered, candidates)
    return [
        Printed(candidate, error=text.reason) if isinstance(text, Failed) else text
        for candidate, text in zip(candidates, texts, strict=True)
    ]


def build_all(workers: Workers, texts: Sequence[Printed]) -> list[Built]:
    """Their libraries; a candidate that cannot be compiled, or that costs its worker, has an `error`."""
    builds = workers.call_all(partial(built, target_text=workers.machine.target_text), texts)
    return [
        Built(text.candidate, error=build.reason) if isinstance(build, Failed) else build
        for text, build in zip(texts, builds, strict=True)
    ]


__all__ = ["build_all", "print_all"]
