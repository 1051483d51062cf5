"""The threads of this process, as the system lists them."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.waiting import eventually

TASKS = Path("/proc/self/task")


def tasks() -> set[int]:
    """The numbers of all threads, whoever started them."""
    return {int(task.name) for task in TASKS.iterdir()}


def all_ended_but(before: set[int]) -> bool:
    """Whether no thread is left but some of these. A thread that was joined may be listed a little longer."""
    return eventually(lambda: tasks() <= before)
