"""Latencies of one model in Treadle and in its peers, call by call in turn, and what they say."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import treadle
from treadle.bench.model import OWN, peer_call

Array = NDArray[Any]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Latencies:
    """One model's calls: the seconds of each side's, in rounds of one call of each; Treadle's are those of `OWN`.

    error: the largest difference of an output from the first peer's, divided by the largest magnitude there
    """

    name: str
    seconds: Mapping[str, tuple[float, ...]]
    error: float

    def median(self, side: str) -> float:
        """A side's median latency in seconds."""
        return statistics.median(self.seconds[side])

    @property
    def best(self) -> str:
        """The peer with the smallest median."""
        return min((side for side in self.seconds if side != OWN), key=self.median)

    @property
    def ratio(self) -> float:
        """How many times as fast as the best peer Treadle is: the median of the rounds' ratios.

        What else the machine does slows all calls of a round, so this wavers less than the medians' quotient.
        """
        return self.ratio_quartiles[1]

    @property
    def ratio_quartiles(self) -> tuple[float, float, float]:
        """The three quartiles of the rounds' ratios."""
        rounds = zip(self.seconds[self.best], self.seconds[OWN], strict=True)
        ratios = [theirs / ours for theirs, ours in rounds]
        if len(ratios) == 1:
            return ratios[0], ratios[0], ratios[0]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, middle, high


def measure_model(
    name: str,
    path: Path,
    inputs: Mapping[str, Array],
    peers: Sequence[str],
    *,
    threads: int,
    rounds: int,
    warmups: int,
    pause: float = 0.0,
) -> Latencies:
    """Compiles the model at `path` for the CPU and measures `rounds` calls of each side, all with `threads` threads.

    TreadleError for a peer that cannot run it.
    """
    shapes = {key: array.shape for key, array in inputs.items()}
    others = {peer: peer_call(peer, path, inputs, threads) for peer in peers}
    with treadle.compile(path, "cpu", shapes, threads=threads) as model:
        ordered = [inputs[tensor.name] for tensor in model.inputs]
        return compare(name, {OWN: lambda: model(*ordered), **others}, rounds=rounds, warmups=warmups, pause=pause)


def compare(name: str, sides: Mapping[str, Call], *, rounds: int, warmups: int, pause: float = 0.0) -> Latencies:
    """Calls all sides in turn (a, b, a, b, ...), the first `warmups` rounds without the clock.

    Before each call it waits `pause` seconds: the threads of another side spin for a while after a call, and would take
    a core from this one.
    """
    results = {side: results_of(call()) for side, call in sides.items()}
    ours, peer = results[OWN], next(each for side, each in results.items() if side != OWN)
    for _ in range(warmups):
        for call in sides.values():
            call()
    taken = [{side: _seconds(call, pause) for side, call in sides.items()} for _ in range(rounds)]
    return Latencies(name, {side: tuple(each[side] for each in taken) for side in sides}, relative_error(ours, peer))


def results_of(returned: Any) -> list[Array]:
    """The outputs in order, of a call that gives a list or a mapping of them."""
    values = returned.values() if hasattr(returned, "values") else returned
    return [np.array(value) for value in values]


def relative_error(actual: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest difference over all outputs, each divided by its largest expected magnitude."""
    errors = [0.0]
    for got, want in zip(actual, expected, strict=True):
        scale = float(np.abs(want).max()) or 1.0
        errors.append(float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max()) / scale)
    return max(errors)


def _seconds(call: Call, pause: float) -> float:
    time.sleep(pause)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cpu_seconds() -> float:
    """Of this process and of the compilers that it has waited for."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in each)
