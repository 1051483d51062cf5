"""Several sides measured within one run: a batch of each in turn, again and again, and what the times say."""

from __future__ import annotations

import itertools
import statistics
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

# What other programs take from this one: the time for which its threads could have run, and did not.

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


Run = Callable[[int], None]
"""Does so many runs and waits until they are done."""

T = TypeVar("T")

Clock = Callable[[], float]


@dataclass(frozen=True)
class Times:
    """Seconds of one run, the mean of a batch of `repeats`, round by round."""

    seconds: tuple[float, ...]
    repeats: int

    @property
    def median(self) -> float:
        """Over the rounds."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Over the rounds."""
        return quartiles(self.seconds)

    def ratios(self, other: Times) -> tuple[float, float, float]:
        """The quartiles of this side's time divided by the other's, round by round.

        What slows the machine for a while slows both sides of a round, so that this wavers less than the times do.
        """
        return quartiles([mine / its for mine, its in zip(self.seconds, other.seconds, strict=True)])


@dataclass(frozen=True)
class Latency:
    """Of single calls, in seconds: what half of them, 90 and 99 in 100 do not exceed, and how many calls there were; of
    fewer than a hundred, `p99` is between the two longest."""

    p50: float
    p90: float
    p99: float
    calls: int


def latency_of(seconds: Sequence[float]) -> Latency:
    """Of one call upwards, with linear interpolation between the two calls next to a percentile."""
    p50, p90, p99 = (float(each) for each in np.percentile(np.asarray(seconds, np.float64), (50, 90, 99)))
    return Latency(p50, p90, p99, len(seconds))


class Timed:
    """A call as a run of many, which keeps the seconds of each of them: what a batch's mean hides."""

    def __init__(self, call: Callable[[], object], clock: Clock = time.perf_counter):
        self._call, self._clock = call, clock
        self.seconds = array("d")

    def __call__(self, count: int) -> None:
        call, clock, add = self._call, self._clock, self.seconds.append
        for _ in range(count):
            start = clock()
            call()
            add(clock() - start)

    def latency(self, calls: int) -> Latency:
        """Of the last so many calls: those before were to warm up."""
        return latency_of(self.seconds[-calls:])


def quartiles(values: tuple[float, ...] | list[float]) -> tuple[float, float, float]:
    """The three quartiles; of a single value three times that value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def interleave(
    sides: Mapping[str, Run], rounds: int, batch_seconds: float, clock: Clock = time.perf_counter
) -> dict[str, Times]:
    """The times of every side over `rounds` rounds.

    A batch has as many runs as take `batch_seconds`, so that waiting for the device at its end weighs little. In every
    round each side has one batch, in orders of which each side follows each other one equally often: threads of ONNX
    Runtime spin for some milliseconds after a run, and slow whoever comes next.
    """
    repeats = {name: _batch(run, batch_seconds, clock) for name, run in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _, order in zip(range(rounds), itertools.cycle(balanced_orders(list(sides))), strict=False):
        for name in order:
            seconds[name].append(_seconds(sides[name], repeats[name], clock) / repeats[name])
    return {name: Times(tuple(seconds[name]), repeats[name]) for name in sides}


def balanced_orders(sides: Sequence[T]) -> list[list[T]]:
    """Orders in which each side stands at each place, and behind each other side, equally often: a Williams design
    (Williams, "Experimental designs balanced for the estimation of residual effects of treatments", 1949)."""
    count = len(sides)
    first = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    orders = [[sides[(at + turn) % count] for at in first] for turn in range(count)]
    return orders if count % 2 == 0 else orders + [order[::-1] for order in orders]


def _batch(run: Run, batch_seconds: float, clock: Clock) -> int:
    """How many runs take that long, found by doubling, which warms up as well."""
    repeats = 1
    run(repeats)
    while _seconds(run, repeats, clock) < batch_seconds and repeats < 1 << 20:
        repeats *= 2
    return repeats


def _seconds(run: Run, repeats: int, clock: Clock) -> float:
    start = clock()
    run(repeats)
    return clock() - start
