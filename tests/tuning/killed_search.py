"""A search that is killed at random moments: `python -m tests.tuning.killed_search MODEL DATABASE MOMENTS GROUP...`.

Forks a search over and over, kills it, and lets the last one end; prints how many were killed before they had ended. A
process of its own, since only one without threads can fork. Libraries' bytes decide times.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.helpers.small_searches import SMALL
from treadle.schedules.rules.templates import templates
from treadle.schedules.search.strategies import STRATEGIES
from treadle.tuning import tuner
from treadle.tuning.measure import Comparison, Timing
from treadle.tuning.model import tune

TRIALS = 6
PART = 4
"""Part of the duration of a whole search after which it is killed at the latest."""


class Fake:
    """A measurer that runs nothing, and takes a little time."""

    def measure(self, comparison: Comparison) -> list[Timing]:
        """Numbers from 1 to 2 microseconds."""
        time.sleep(0.01)
        return [Timing((1 + hashlib.sha256(each).digest()[0] / 256) * 1e-6) for each in comparison.libraries]

    def close(self) -> None:
        """Nothing."""


def search(model: Path, database: Path, groups: list[str]) -> None:
    """A search of few candidates with a fixed seed."""
    STRATEGIES["evolution"], tuner.MEASURED = SMALL, 2
    with ThreadPoolExecutor(2) as executor:
        tune(
            model, database, seconds=600, trials=TRIALS, groups=groups, seed=5, rules=(templates,), executor=executor,
            measurer=Fake(),
        )  # fmt: skip


def forked(model: Path, database: Path, groups: list[str]) -> int:
    """The number of a process that searches, and ends with status 0 if that succeeds."""
    number = os.fork()
    if number == 0:
        status = 1
        try:
            search(model, database, groups)
            status = 0
        finally:
            os._exit(status)
    return number


def main(model: Path, database: Path, moments: int, groups: list[str]) -> int:
    """The status: 0 if the first and the last search ended well. The first, in a folder of its own, is not killed."""
    start = time.monotonic()
    _, first = os.waitpid(forked(model, database.with_name("whole"), groups), 0)
    duration, generator, killed = time.monotonic() - start, random.Random(0), 0
    for _ in range(moments):
        number = forked(model, database, groups)
        time.sleep(generator.uniform(0, duration / PART))
        os.kill(number, signal.SIGKILL)
        _, status = os.waitpid(number, 0)
        killed += os.WIFSIGNALED(status)
    _, last = os.waitpid(forked(model, database, groups), 0)
    print(killed)
    return first or last


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
