"""How long kernels of one space take on the device, by its own events, with and without their operands in L2."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import relative_error
from benchmarks.space_kernels import SpaceKernel
from treadle.backends.cuda.compiler import Unit
from treadle.backends.cuda.driver import BoundLaunch, Driver
from treadle.backends.interface import BufferRef
from treadle.errors import TreadleError

Array = NDArray[Any]
Clock = Callable[[], float]

_AGAIN = 4
"""Launches in a row of a warm measurement."""
_THREADS = 256
_FEWEST_ROUNDS = 3

FLUSH = Unit(
    "treadle_flush",
    f"""extern "C" __global__ void __launch_bounds__({_THREADS}) treadle_flush(float *x) {{
  x[(long long)blockIdx.x * {_THREADS} + threadIdx.x] += 1.0f;
}}
""",
)
"""Reads and overwrites a buffer that is larger than any L2 cache."""


@dataclass(frozen=True)
class Timed:
    """One schedule. Seconds, one number a round.

    cold: after L2 was overwritten; warm: the mean of launches in a row
    difference: of the result from the default's, as `relative_error` counts it
    """

    kernel: SpaceKernel
    difference: float = 0.0
    cold: list[float] = field(default_factory=list[float])
    warm: list[float] = field(default_factory=list[float])

    @property
    def median_cold(self) -> float:
        """Over the rounds."""
        return statistics.median(self.cold)

    @property
    def median_warm(self) -> float:
        """Over the rounds."""
        return statistics.median(self.warm)


class Bench:
    """Buffers on a device that all schedules of one space share, and what overwrites L2.

    Give the memory back with `close`, or use it in a `with` statement.
    """

    def __init__(self, driver: Driver, inputs: Sequence[Array], output: Array, flush_image: bytes, flush_bytes: int):
        """output: what the result is like; flush_image: `FLUSH`, compiled."""
        self._driver, self._output = driver, output
        self._owned: list[int] = []
        self._shared: dict[str, tuple[int, int]] = {}
        try:
            contiguous = [np.ascontiguousarray(each) for each in inputs]
            self._inputs = [self._allocate(each.nbytes) for each in contiguous]
            self._result = self._allocate(output.nbytes)
            for address, each in zip(self._inputs, contiguous, strict=True):
                driver.upload(address, each)
            self._flush = self._flushing(flush_image, flush_bytes)
            driver.synchronize()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the device memory back."""
        while self._owned:
            self._driver.free(self._owned.pop())

    def bind(self, kernel: SpaceKernel) -> BoundLaunch:
        """The kernel, loaded, with its arguments; partial sums lie in an arena, their counters in zeroed memory."""
        function = self._driver.load(kernel.image, kernel.name, len(kernel.buffers), kernel.dynamic_shared, kernel.maps)
        arena, zeroed = self._scratch("arena", kernel.arena), self._scratch("zeroed", kernel.zeroed)
        arguments = tuple(self._address(buffer, arena, zeroed) for buffer in kernel.buffers)
        return BoundLaunch(function, kernel.grid, kernel.block, arguments, kernel.dynamic_shared, kernel.maps)

    def _address(self, buffer: BufferRef, arena: int, zeroed: int) -> int:
        if buffer.kind == "arena":
            return arena + buffer.index
        if buffer.kind == "zeroed":
            return zeroed + buffer.index
        if buffer.kind == "input":
            return self._inputs[buffer.index]
        if buffer.kind == "output":
            return self._result
        raise TreadleError(f"a kernel reads {buffer.kind} memory", "gpu_spaces", "input, output, arena, zeroed")

    def _scratch(self, kind: str, num_bytes: int) -> int:
        """Memory that all kernels of the space share, at least so large; zeroed memory is left as it was found."""
        address, size = self._shared.get(kind, (0, 0))
        if size >= num_bytes:
            return address
        address = self._allocate(num_bytes)
        self._shared[kind] = address, num_bytes
        if kind == "zeroed":
            zeros = np.zeros(num_bytes, np.uint8)
            self._driver.upload(address, zeros)
            self._driver.synchronize()
        return address

    def result(self, launch: BoundLaunch) -> Array:
        """What the kernel computes."""
        found = np.full_like(self._output, 0)
        self._driver.upload(self._result, found)
        self._driver.launch([launch])
        self._driver.synchronize()
        back = np.empty_like(self._output)
        self._driver.download(back, self._result)
        self._driver.synchronize()
        return back

    def cold(self, launch: BoundLaunch) -> float:
        """Seconds of one launch after all of L2 was overwritten.

        The device is still busy overwriting when the launch is queued, so that it waits for nothing in between.
        """
        self._driver.launch([self._flush] * 2)
        start = self._driver.record()
        self._driver.launch([launch])
        return self._driver.seconds_between(start, self._driver.record())

    def warm(self, launch: BoundLaunch) -> float:
        """Seconds of one of several launches in a row, which find in L2 what the one before has left there.

        They are one CUDA graph: queued one by one, launches of a few microseconds would be timed by the queueing.
        """
        graph = self._driver.capture([launch] * _AGAIN)
        try:
            self._driver.launch([*[self._flush] * 4, launch])
            start = self._driver.record()
            graph.launch()
            return self._driver.seconds_between(start, self._driver.record()) / _AGAIN
        finally:
            graph.close()

    def _allocate(self, num_bytes: int) -> int:
        self._owned.append(self._driver.allocate(num_bytes))
        return self._owned[-1]

    def _flushing(self, image: bytes, num_bytes: int) -> BoundLaunch:
        blocks = max(1, num_bytes // 4 // _THREADS)
        address = self._allocate(4 * blocks * _THREADS)
        function = self._driver.load(image, FLUSH.name, 1, 0)
        return BoundLaunch(function, (blocks, 1, 1), (_THREADS, 1, 1), (address,))


def time_kernels(
    bench: Bench, kernels: Iterable[SpaceKernel], rounds: int, seconds: float, clock: Clock = time.perf_counter
) -> tuple[list[Timed], list[SpaceKernel]]:
    """The times of all kernels that there are, of which the first is what others are compared with; and those that
    could not be compiled or loaded, each with its error.

    Raises TreadleError that names a kernel after whose launch the device is of no use.

    The kernels take turns, one launch each, so that what slows the device for a while slows all of them alike; every
    round begins with another one. There are at most `rounds`, fewer where they would take longer than `seconds`, and
    three at least.
    """
    timed: list[Timed] = []
    launches: list[BoundLaunch] = []
    failed: list[SpaceKernel] = []
    expected: Array | None = None
    for kernel in kernels:
        if kernel.error is not None:
            failed.append(kernel)
            continue
        try:
            launch = bench.bind(kernel)
        except TreadleError as error:
            failed.append(replace(kernel, error=str(error)))
            continue
        try:
            result = bench.result(launch)
        except TreadleError as error:
            # After a launch that failed nothing can be done on the device: which one was it?
            where = f"{error.where}, kernel '{kernel.name}' of {dict(kernel.choices)}"
            raise TreadleError(error.message, where, error.accepted) from error
        expected = result if expected is None else expected
        timed.append(Timed(kernel, relative_error([result], [expected])))
        launches.append(launch)
    start, turn = clock(), 0
    while timed and turn < rounds and (turn < _FEWEST_ROUNDS or (clock() - start) * (turn + 1) <= seconds * turn):
        first = turn * len(timed) // rounds
        for n in [*range(first, len(timed)), *range(first)]:
            timed[n].cold.append(bench.cold(launches[n]))
            timed[n].warm.append(bench.warm(launches[n]))
        turn += 1
    return timed, failed
