"""Times candidates in a child process, here or elsewhere: one that crashes or hangs does not end the search."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from xdsl.parser import Parser

from treadle.backends.c.executor import ENTRY, aligned_empty
from treadle.backends.c.open_artifact import load_library
from treadle.backends.interface import TensorSpec
from treadle.backends.reference.bound_module import bound_module
from treadle.dialects.graph import FusedOp, RequiredAttr
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.graph.definition_analysis import shape_of
from treadle.passes.schedule.instance import group_of
from treadle.target import Target, TargetKind
from treadle.tuning.child import CallEndedError, Child
from treadle.tuning.device_timer import DeviceLostError, DeviceTimer, GpuLibrary, device_name, this_device
from treadle.tuning.workers import Workers, reason_of

# Times candidates on this machine's processor: interleaved, in one process, with weights that no cache has.
#
# In a network a kernel finds its activations in the caches, where the kernel before left them, but its weights in
# memory, since all weights together exceed the caches. So calls cycle through copies of the constants that together
# exceed the last-level cache.

Array = NDArray[Any]
Clock = Callable[[], float]

_MOST_COPIES = 64
_BATCH_SECONDS = 2e-3
"""Length of the sequence of calls whose mean is one sample: long compared with reading a clock and waking a core."""


@dataclass
class Timed:
    """The samples of one library, in seconds."""

    seconds: list[float] = field(default_factory=list[float])

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Operands:
    """What every candidate of a group is called with.

    constants: the numbers of the inputs that are weights
    cache_bytes: bytes of constants that are read between two uses of the same copy
    """

    inputs: Sequence[Array]
    outputs: Sequence[TensorSpec]
    constants: Sequence[int]
    cache_bytes: int

    def copies(self) -> list[list[Array]]:
        """Lists of inputs, each with its own copy of the constants; the activations are shared."""
        weights = sum(self.inputs[n].nbytes for n in self.constants)
        count = 1 if not weights else max(1, min(_MOST_COPIES, -(-self.cache_bytes // weights)))
        found: list[list[Array]] = []
        for copy in range(count):
            shared = [a if copy == 0 or n not in self.constants else _aligned(a) for n, a in enumerate(self.inputs)]
            found.append([_aligned(a) for a in shared] if copy == 0 else shared)
        for each in found[1:]:
            for n in range(len(self.inputs)):
                if n not in self.constants:
                    each[n] = found[0][n]
        return found


def _aligned(array: Array) -> Array:
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


class InterleavedTimer:
    """Times libraries with the same interface alternately, on one pool of threads.

    libraries: their bytes; arena_bytes: the size of their largest arena; threads: of each call
    constants: those of the programs, which are the same for all that have any
    """

    def __init__(
        self,
        libraries: Sequence[bytes],
        arena_bytes: int,
        operands: Operands,
        threads: int,
        constants: Sequence[Array] = (),
    ):
        self._loaded = [load_library(image) for image in libraries]
        self.timed = [Timed() for _ in libraries]
        self._results = [aligned_empty(spec.shape, spec.dtype) for spec in operands.outputs]
        self._copies = operands.copies()
        self._inputs = [_pointers(copy) for copy in self._copies]
        self._kept = [_aligned(array) for array in constants]
        self._outputs, self._constants = _pointers(self._results), _pointers(self._kept)
        self._arena = aligned_empty((max(arena_bytes, 64),), np.uint8)
        first = self._loaded[0]
        first.treadle_pool_create.restype, first.treadle_pool_create.argtypes = ctypes.c_void_p, [ctypes.c_long]
        first.treadle_pool_destroy.restype, first.treadle_pool_destroy.argtypes = None, [ctypes.c_void_p]
        self._pool = first.treadle_pool_create(threads)
        self._turn = 0
        pointers = ctypes.POINTER(ctypes.c_void_p)
        self._entries = [library[ENTRY] for library in self._loaded]
        for entry in self._entries:
            entry.argtypes = [ctypes.c_void_p, pointers, pointers, pointers, ctypes.c_void_p]
            entry.restype = None

    def close(self) -> None:
        """Ends the threads."""
        self._loaded[0].treadle_pool_destroy(self._pool)

    @property
    def samples(self) -> Sequence[Sequence[float]]:
        """Seconds of a call of each library."""
        return [each.seconds for each in self.timed]

    @property
    def errors(self) -> Sequence[str | None]:
        """Libraries that cannot be loaded end the process instead."""
        return [None] * len(self.timed)

    def outputs(self, number: int) -> list[Array]:
        """The outputs of one library."""
        for result in self._results:
            result.view(np.uint8).fill(0xFF)
        self._turn = 0
        self._call(number)
        return [result.copy() for result in self._results]

    def run(self, rounds: int, seconds: float, clock: Clock = time.perf_counter) -> None:
        """Takes a sample of each library in each round, until `seconds` are over (at least three rounds). The library
        that a round begins with varies."""
        repeats = [self._repeats(number, clock) for number in range(len(self.timed))]
        start = clock()
        for turn in range(rounds):
            if turn >= 3 and clock() - start > seconds:
                return
            first = turn * len(self.timed) // rounds
            for number in [*range(first, len(self.timed)), *range(first)]:
                self.timed[number].seconds.append(self._seconds(number, repeats[number], clock))

    def _repeats(self, number: int, clock: Clock) -> int:
        self._call(number)
        once = min(self._seconds(number, 1, clock) for _ in range(2))
        return max(1, int(_BATCH_SECONDS / max(once, 1e-7)))

    def _seconds(self, number: int, repeats: int, clock: Clock) -> float:
        self._call(number)
        start = clock()
        for _ in range(repeats):
            self._call(number)
        return (clock() - start) / repeats

    def _call(self, number: int) -> None:
        inputs = self._inputs[self._turn % len(self._inputs)]
        self._turn += 1
        self._entries[number](self._pool, inputs, self._outputs, self._constants, self._arena.ctypes.data)


def _pointers(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(array.ctypes.data for array in arrays))


CACHE_BYTES = 64 << 20
"""Bytes of weights that are read before a copy is used again: more than two cores' share of the last-level cache."""
_ROUNDS = 15
_ROUNDS_A_SECOND = 7.5
"""Of a timing that may take more than two seconds, as the last one of a group, whose result is kept."""
_KEPT = 16
"""Programs with extents whose results are kept: the points of one group."""
_PATIENCE = 30.0
"""Seconds that the child has in addition to the timing itself, to load libraries and to evaluate the definition."""
_LARGEST = 8.0
"""The bound of the inputs' absolute values: functions such as exp do not overflow."""


@dataclass(frozen=True)
class Comparison:
    """Libraries that compute the same group, to be timed together.

    text: the group's program; libraries: their bytes, for a GPU those of `GpuLibrary.packed`
    seconds: limit of the timing
    extents: what the last inputs hold, of a group of a ranged model
    """

    text: str
    libraries: tuple[bytes, ...]
    arena_bytes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: tuple[int, ...]
    threads: int
    seconds: float
    extents: tuple[int, ...] = ()
    kind: TargetKind = "cpu"


@dataclass(frozen=True)
class Timing:
    """One library's times: the median in seconds, or why there is none.

    rounds: the seconds of each round, in which all libraries of a comparison had their turn
    """

    seconds: float | None = None
    error: str | None = None
    rounds: tuple[float, ...] = ()


class Measurer(Protocol):
    """Times libraries that compute the same."""

    def measure(self, comparison: Comparison) -> list[Timing]:
        """A timing for each library. One that is wrong, crashes or hangs has an error; the others have times.

        TreadleError for what no library is at fault for, such as a full disk.
        """
        ...

    def close(self) -> None:
        """Ends what it started."""
        ...


class LocalMeasurer:
    """Runs comparisons, one at a time, in a child process that is started anew after a crash or a hang."""

    def __init__(self) -> None:
        self._child = Child()

    def close(self) -> None:
        """Ends the child process."""
        self._child.close()

    def measure(self, comparison: Comparison) -> list[Timing]:
        """As every Measurer. If the process ends, each library is timed alone, to find the one at fault."""
        return _isolating(comparison, self._run)

    def device(self, target: Target) -> str:
        """What this machine's GPU is called; empty if it does not run the target's code. TreadleError if it cannot be
        opened."""
        try:
            return self._child.call(partial(device_name, str(target)), _PATIENCE)
        except CallEndedError as error:
            raise TreadleError(
                f"the GPU cannot be opened: {error}", "tune", "a GPU that other programs can use"
            ) from error

    def _run(self, comparison: Comparison) -> list[Timing]:
        try:
            return self._child.call(partial(timings, comparison), comparison.seconds * 2 + _PATIENCE)
        except DeviceLostError:
            self._child.close()  # the next process has a new context
            raise


class RemoteMeasurer:
    """Runs comparisons, one at a time, on whatever worker takes them, in a child process of the worker's."""

    def __init__(self, workers: Workers):
        self._workers = workers

    def close(self) -> None:
        """Nothing: the workers are their executor's."""

    def measure(self, comparison: Comparison) -> list[Timing]:
        """As every Measurer. If a worker is lost for good, each library is timed alone."""
        return _isolating(comparison, self._run)

    def _run(self, comparison: Comparison) -> list[Timing]:
        return self._workers.call(measure_here, comparison)


_HERE, _ONE_AT_A_TIME = LocalMeasurer(), Lock()


def measure_here(comparison: Comparison) -> list[Timing]:
    """A comparison on this process's machine, for executors: however many threads call it, one runs."""
    with _ONE_AT_A_TIME:
        return _HERE.measure(comparison)


def _isolating(comparison: Comparison, run: Callable[[Comparison], list[Timing]]) -> list[Timing]:
    """The timings of `run`; if it fails, those of runs with one library each."""
    try:
        return run(comparison)
    except TreadleError:
        raise
    except Exception as error:
        if len(comparison.libraries) == 1:
            return [Timing(error=reason_of(error))]
    alone = [replace(comparison, libraries=(library,)) for library in comparison.libraries]
    return [timing for each in alone for timing in _isolating(each, run)]


def timings(comparison: Comparison) -> list[Timing]:
    """Runs a comparison in this process. A library whose results are wrong is not timed."""
    inputs, libraries = _inputs(comparison), comparison.libraries
    with closing(_timer(comparison, inputs, libraries)) as timer:
        wrong = {n: error or _difference(comparison, inputs, timer.outputs(n)) for n, error in enumerate(timer.errors)}
    right = [n for n, difference in wrong.items() if difference is None]
    found = {n: Timing(error=difference) for n, difference in wrong.items() if difference is not None}
    if right:
        with closing(_timer(comparison, inputs, [libraries[n] for n in right])) as timer:
            timer.run(max(_ROUNDS, int(_ROUNDS_A_SECOND * comparison.seconds)), comparison.seconds)
        found |= {
            n: Timing(statistics.median(samples), rounds=tuple(samples))
            for n, samples in zip(right, timer.samples, strict=True)
        }
    return [found[n] for n in range(len(libraries))]


def _timer(
    comparison: Comparison, inputs: Sequence[Array], libraries: Sequence[bytes]
) -> InterleavedTimer | DeviceTimer:
    """What times libraries of one kind on this machine."""
    constants, outputs, arena = comparison.constants, comparison.outputs, comparison.arena_bytes
    if comparison.kind == "cuda":
        kernels = [GpuLibrary.unpacked(each) for each in libraries]
        return DeviceTimer(this_device(), kernels, arena, inputs, outputs, constants)
    return InterleavedTimer(libraries, arena, Operands(inputs, outputs, constants, CACHE_BYTES), comparison.threads)


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


def _inputs(comparison: Comparison) -> list[Array]:
    """Random inputs, and the extents behind them."""
    found, extents = random_inputs(comparison.inputs), comparison.extents
    return [*found[: len(found) - len(extents)], *(np.array(extent, np.int64) for extent in extents)]


_EXPECTED: dict[tuple[str, tuple[int, ...]], list[tuple[Any, Array]]] = {}
"""By a program and its extents, each output's values with the errors allowed, and which elements are required."""


def required_elements(fused: FusedOp, extents: Sequence[int]) -> list[Array]:
    """Which elements of each of a group's results are needed where the extents have these values."""
    found: list[Array] = []
    required_regions: Sequence[object] = (
        [None] * len(fused.outputs) if fused.required_regions is None else fused.required_regions.data
    )
    for result, required in zip(fused.outputs, required_regions, strict=True):
        shape = shape_of(result)
        indices: Any = {f"d{d}": each for d, each in enumerate(np.indices(shape, np.int64, sparse=True))}
        needed = np.ones(shape, np.bool_)
        for constraint in required.data if isinstance(required, RequiredAttr) else ():
            needed &= constraint.index.evaluate(indices) < extents[constraint.extent]
        found.append(needed)
    return found


def _difference(comparison: Comparison, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    """Describes how results differ from the definition; None if they agree within the limits of rounding."""
    key = comparison.text, comparison.extents
    if key not in _EXPECTED:
        if len(_EXPECTED) >= _KEPT:
            _EXPECTED.clear()
        module = Parser(treadle_context(), comparison.text).parse_module()
        every = [np.ones((), np.bool_)] * len(comparison.outputs)
        required = required_elements(group_of(module), comparison.extents) if comparison.extents else every
        _EXPECTED[key] = list(zip(bound_module(module, inputs), required, strict=True))
    for spec, actual, (expected, needed) in zip(comparison.outputs, outputs, _EXPECTED[key], strict=True):
        value = actual.astype(np.float64) if actual.dtype.kind not in "biu" else actual
        finite = np.isfinite(expected.value)
        known = np.where(finite, expected.value, 0)
        # Larger less smaller: a difference of unsigned numbers is not negative.
        error = np.where(finite, np.maximum(value, known) - np.minimum(value, known), 0)
        beyond = np.where(finite & needed, ~(error <= expected.full_error), False)
        others = ~finite & needed
        if beyond.any() or not np.array_equal(value[others], expected.value[others], equal_nan=True):
            return f"{spec.name} is wrong in {int(beyond.sum())} of {beyond.size} elements"
    return None
