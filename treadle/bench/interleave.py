"""Several sides measured within one run: a batch of each in turn, again and again, and what the times say."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

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
