"""What other programs take from this one: the time for which its threads could have run, and did not."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_TASKS = Path("/proc/self/task")
BUSY = 0.05
"""The part of the time that threads wait above which a machine counts as busy: on an idle one it is below 0.01."""


def waited_seconds(tasks: Path = _TASKS) -> float | None:
    """Seconds that the threads of this process have waited for a core, all together; None where the system does not
    say, which Linux does with scheduler statistics."""
    found: list[float] = []
    for file in tasks.glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread that has just ended
            found.append(int(file.read_text().split()[1]) * 1e-9)
    return sum(found) if found else None


@dataclass
class Disturbance:
    """Counts from its creation on.

    threads: that are meant to run at once
    """

    threads: int
    waited: Callable[[], float | None] = waited_seconds
    clock: Callable[[], float] = time.perf_counter
    _before: float | None = field(init=False)
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._before, self._start = self.waited(), self.clock()

    def part(self) -> float:
        """The part of the threads' time, from 0 to 1, in which they waited for a core; 0 where that is not known."""
        now, passed = self.waited(), self.clock() - self._start
        if now is None or self._before is None or passed <= 0:
            return 0.0
        return min(1.0, max(0.0, now - self._before) / (passed * self.threads))


def busy_text(part: float) -> str:
    """What is said of a machine that was busy; empty of one that was not."""
    return f"other programs ran: threads waited for a core {part:.0%} of the time" if part > BUSY else ""


__all__ = ["BUSY", "Disturbance", "busy_text", "waited_seconds"]
