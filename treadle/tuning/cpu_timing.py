"""Times candidates on this machine's processor: interleaved, in one process, with weights that no cache has.

In a network a kernel finds its activations in the caches, where the kernel before left them, but its weights in memory,
since all weights together exceed the caches. So calls cycle through copies of the constants that together exceed the
last-level cache.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.backends.c.executor import ENTRY, aligned_empty
from treadle.backends.c.open_artifact import load_library
from treadle.backends.interface import TensorSpec

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


__all__ = ["InterleavedTimer", "Operands", "Timed"]
