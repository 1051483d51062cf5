"""Times candidates in a child process, so that one that crashes or hangs does not end the search."""

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
from treadle.tuning.cpu_timing import InterleavedTimer, Operands

Array = NDArray[Any]

CACHE_BYTES = 64 << 20
"""Bytes of weights that are read before a copy is used again: more than two cores' share of the last-level cache."""
_ROUNDS = 15
_PATIENCE = 30.0
"""Seconds that the child has in addition to the timing itself, to load libraries and to evaluate the definition."""
_LARGEST = 8.0
"""The bound of the inputs' absolute values: functions such as exp do not overflow."""


@dataclass(frozen=True)
class Comparison:
    """Libraries that compute the same group, to be timed together.

    text: the group's program; libraries: paths; seconds: limit of the timing
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
    """Runs comparisons, one at a time, in a child process that is restarted after a crash or a hang."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def close(self) -> None:
        """Ends the child process."""
        if self._pool is not None:
            for process in self._children():
                process.kill()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _children(self) -> list[BaseProcess]:
        """The pool's processes: only a signal ends a kernel that hangs, and executors have no method that sends one."""
        running: dict[int, BaseProcess] | None = getattr(self._pool, "_processes", None)
        return [] if running is None else list(running.values())

    def measure(self, comparison: Comparison) -> list[Timing]:
        """A timing for each library. If the process crashes or hangs, each library is timed alone, to find the one at
        fault."""
        try:
            return self._run(comparison)
        except (BrokenProcessPool, FutureTimeoutError) as error:
            self.close()
            if len(comparison.libraries) == 1:
                hung = isinstance(error, FutureTimeoutError)
                return [Timing(error="it did not end in time" if hung else "it ended the process that ran it")]
        alone = [self.measure(_only(comparison, n)) for n in range(len(comparison.libraries))]
        return [each for (each,) in alone]

    def _run(self, comparison: Comparison) -> list[Timing]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        future = self._pool.submit(timings, comparison)
        return future.result(timeout=comparison.seconds * 2 + _PATIENCE)


def timings(comparison: Comparison) -> list[Timing]:
    """Runs a comparison in this process. A library whose results are wrong is not timed."""
    inputs = random_inputs(comparison.inputs)
    operands = Operands(inputs, comparison.outputs, comparison.constants, CACHE_BYTES)
    timer = InterleavedTimer(comparison.libraries, comparison.arena_bytes, operands, comparison.threads)
    try:
        wrong = {n: _difference(comparison, inputs, timer.outputs(n)) for n in range(len(comparison.libraries))}
    finally:
        timer.close()
    right = [n for n, difference in wrong.items() if difference is None]
    found = {n: Timing(error=difference) for n, difference in wrong.items() if difference is not None}
    if right:
        libraries = [comparison.libraries[n] for n in right]
        timer = InterleavedTimer(libraries, comparison.arena_bytes, operands, comparison.threads)
        try:
            timer.run(_ROUNDS, comparison.seconds)
        finally:
            timer.close()
        found |= {n: Timing(timed.median) for n, timed in zip(right, timer.timed, strict=True)}
    return [found[n] for n in range(len(comparison.libraries))]


def random_inputs(specs: Sequence[TensorSpec]) -> list[Array]:
    """Random inputs with a fixed seed: normally distributed floats, integers of one digit, booleans."""
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


def _difference(comparison: Comparison, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    """Describes how results differ from the definition; None if they agree within the limits of rounding."""
    if comparison.text not in _EXPECTED:
        _EXPECTED.clear()
        module = Parser(treadle_context(), comparison.text).parse_module()
        _EXPECTED[comparison.text] = bound_module(module, inputs)
    for spec, actual, expected in zip(comparison.outputs, outputs, _EXPECTED[comparison.text], strict=True):
        value = actual.astype(np.float64) if actual.dtype.kind not in "biu" else actual
        finite = np.isfinite(expected.value)
        error = np.abs(np.where(finite, value - np.where(finite, expected.value, 0), 0))
        beyond = np.where(finite, ~(error <= expected.full_error), False)
        if beyond.any() or not np.array_equal(value[~finite], expected.value[~finite], equal_nan=True):
            return f"{spec.name} is wrong in {int(beyond.sum())} of {beyond.size} elements"
    return None


def _only(comparison: Comparison, number: int) -> Comparison:
    return replace(comparison, libraries=(comparison.libraries[number],))


__all__ = ["Comparison", "Measurer", "Timing", "random_inputs", "timings"]
