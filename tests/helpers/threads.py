"""The threads of this process, as the system lists them."""

from __future__ import annotations

import time
from pathlib import Path

TASKS = Path("/proc/self/task")


def tasks() -> set[int]:
    """The numbers of all threads, whoever started them."""
    return {int(task.name) for task in TASKS.iterdir()}


def all_ended_but(before: set[int]) -> bool:
    """Whether no thread is left but some of these. A thread that was joined may be listed a little longer."""
    for _ in range(500):
        if tasks() <= before:
            return True
        time.sleep(0.01)
    return False
