"""Timing candidates in a process of their own, so that one which crashes or hangs costs itself and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.parser import Parser

from treadle.backends.buffers import TensorSpec
from treadle.backends.reference.bound_module import bound_module
from treadle.dialects.registry import treadle_context
from treadle.tuning.cpu_timing import Operands, Race

Array = NDArray[Any]

CACHE_BYTES = 64 << 20
"""Weights that pass before a copy is used again: more than the last cache's part of two cores."""
_ROUNDS = 15
_PATIENCE = 30.0
"""Seconds that a process gets besides what the times themselves take, to load and to evaluate the definition."""
_LARGEST = 8.0
"""Of the inputs: what functions such as exp do not overflow on."""


@dataclass(frozen=True)
class Contest:
    """Libraries that compute the same group, to be timed against each other.

    text: the group's program; libraries: paths, the first one the yardstick; seconds: what the rounds may take
    """

    text: str
    libraries: tuple[str, ...]
    arena_bytes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: tuple[int, ...]
    threads: int
    seconds: float


@dataclass(frozen=True)
class Timing:
    """One library's times: the median in seconds, or why there is none."""

    seconds: float | None = None
    error: str | None = None


class Measurer:
    """Runs contests, one at a time, in a child process that is started anew after a crash or a hang."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def close(self) -> None:
        """Ends the child."""
        if self._pool is not None:
            for process in self._children():
                process.kill()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _children(self) -> list[BaseProcess]:
        """The pool's processes: a kernel that hangs is ended by a signal alone, which executors cannot send."""
        running: dict[int, BaseProcess] | None = getattr(self._pool, "_processes", None)
        return [] if running is None else list(running.values())

    def measure(self, contest: Contest) -> list[Timing]:
        """The times of each library, in their order. One that kills the process is found by trying each alone."""
        try:
            return self._run(contest)
        except (BrokenProcessPool, FutureTimeoutError) as error:
            self.close()
            if len(contest.libraries) == 1:
                hung = isinstance(error, FutureTimeoutError)
                return [Timing(error="it did not end in time" if hung else "it ended the process that ran it")]
        alone = [self.measure(_only(contest, n)) for n in range(len(contest.libraries))]
        return [each for (each,) in alone]

    def _run(self, contest: Contest) -> list[Timing]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        future = self._pool.submit(timings, contest)
        return future.result(timeout=contest.seconds * 2 + _PATIENCE)


def timings(contest: Contest) -> list[Timing]:
    """Times a contest in this process. A library whose results are wrong is not timed."""
    inputs = random_inputs(contest.inputs)
    operands = Operands(inputs, contest.outputs, contest.constants, CACHE_BYTES)
    everyone = Race(contest.libraries, contest.arena_bytes, operands, contest.threads)
    try:
        wrong = {n: _difference(contest, inputs, everyone.outputs(n)) for n in range(len(contest.libraries))}
    finally:
        everyone.close()
    right = [n for n, difference in wrong.items() if difference is None]
    found = {n: Timing(error=difference) for n, difference in wrong.items() if difference is not None}
    if right:
        race = Race([contest.libraries[n] for n in right], contest.arena_bytes, operands, contest.threads)
        try:
            race.run(_ROUNDS, contest.seconds)
        finally:
            race.close()
        found |= {n: Timing(timed.median) for n, timed in zip(right, race.timed, strict=True)}
    return [found[n] for n in range(len(contest.libraries))]


def random_inputs(specs: Sequence[TensorSpec]) -> list[Array]:
    """The same values for the same specs: normal floats, integers of one digit, booleans."""
    generator = np.random.default_rng(0)
    found: list[Array] = []
    for spec in specs:
        if spec.dtype.kind in "fV" or spec.dtype.name == "bfloat16":
            found.append(np.clip(generator.standard_normal(spec.shape), -_LARGEST, _LARGEST).astype(spec.dtype))
        elif spec.dtype.kind == "b":
            found.append(generator.integers(0, 2, spec.shape).astype(bool))
        else:
            found.append(generator.integers(0, 10, spec.shape).astype(spec.dtype))
    return found


_EXPECTED: dict[str, Any] = {}


def _difference(contest: Contest, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    """What is wrong with some results; None if they are what the definition says, within the limits of rounding."""
    if contest.text not in _EXPECTED:
        _EXPECTED.clear()
        module = Parser(treadle_context(), contest.text).parse_module()
        _EXPECTED[contest.text] = bound_module(module, inputs)
    for spec, actual, expected in zip(contest.outputs, outputs, _EXPECTED[contest.text], strict=True):
        value = actual.astype(np.float64) if actual.dtype.kind not in "biu" else actual
        finite = np.isfinite(expected.value)
        error = np.abs(np.where(finite, value - np.where(finite, expected.value, 0), 0))
        beyond = np.where(finite, ~(error <= expected.full_error), False)
        if beyond.any() or not np.array_equal(value[~finite], expected.value[~finite], equal_nan=True):
            return f"{spec.name} is wrong in {int(beyond.sum())} of {beyond.size} elements"
    return None


def _only(contest: Contest, number: int) -> Contest:
    return replace(contest, libraries=(contest.libraries[number],))


__all__ = ["Contest", "Measurer", "Timing", "random_inputs", "timings"]
