"""Times candidates on a GPU: in turn, in one process, as CUDA graphs of launches over weights that L2 does not hold.

A compiled model runs its kernels as one graph of launches. There a kernel finds its activations in L2, where the kernel
before left them, but its weights in memory: the launches of a graph take copies of the weights in turn, which together
are larger than L2.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.backends.cuda.compiler import nvrtc_version
from treadle.backends.cuda.driver import BoundLaunch, Device, LaunchGraph, check_toolkit
from treadle.backends.cuda.executor import Launch
from treadle.backends.cuda.open_driver import open_driver
from treadle.backends.interface import BufferRef, TensorSpec
from treadle.errors import TreadleError
from treadle.target import Target

Array = NDArray[Any]
Clock = Callable[[], float]

_GRAPH_SECONDS = 3e-4
"""Of the launches of one sample: a hundred times what an event's time wavers by."""
_MOST_LAUNCHES = 256
"""Of one graph, and copies of the weights."""
_OF_MEMORY = 0.25
"""The part of the free memory that copies of the weights may take."""


class DeviceLostError(Exception):
    """A kernel that failed, after which nothing can be done on the device by the same process."""


@dataclass(frozen=True)
class GpuLibrary:
    """A candidate's kernels, compiled. Bytes of the memory that is zero before and after each launch."""

    launches: tuple[Launch, ...]
    zeroed_bytes: int = 0

    def packed(self) -> bytes:
        """What travels between processes of one machine, and nowhere else."""
        return pickle.dumps(self)

    @staticmethod
    def unpacked(library: bytes) -> GpuLibrary:
        """What `packed` gave."""
        found = pickle.loads(library)  # noqa: S301  # from a worker, whose results are pickled anyhow
        assert isinstance(found, GpuLibrary)
        return found


@cache
def this_device() -> Device:
    """The first GPU, which the process keeps. TreadleError where there is none, or its driver is too old."""
    device = open_driver()
    check_toolkit(device, nvrtc_version())
    return device


def device_name(target_text: str) -> str:
    """What the first GPU is called; empty if it does not run a target's code. TreadleError as `this_device`."""
    device, target = this_device(), Target.parse(target_text)
    best = Target.for_capability(*device.capability)
    runs = best.capability // 10 == target.capability // 10 and best.capability >= target.capability
    return device.device_name if runs else ""


class DeviceTimer:
    """Times libraries with the same interface alternately on one device.

    inputs: of a call; constants: the numbers of those that are weights
    samples: seconds of a call, one number a round; errors: of libraries that cannot be loaded, and have no samples
    DeviceLostError if a kernel fails.
    """

    def __init__(
        self,
        driver: Device,
        libraries: Sequence[GpuLibrary],
        arena_bytes: int,
        inputs: Sequence[Array],
        outputs: Sequence[TensorSpec],
        constants: Sequence[int],
    ):
        self._driver, self._owned = driver, list[int]()
        self.samples: list[list[float]] = [[] for _ in libraries]
        self.errors: list[str | None] = [None for _ in libraries]
        self._results = [np.empty(spec.shape, spec.dtype) for spec in outputs]
        self._graphs: dict[int, LaunchGraph] = {}
        self._calls: dict[int, int] = {}
        self._zeros = np.zeros(max((each.zeroed_bytes for each in libraries), default=0), np.uint8)
        try:
            self._outputs = [self._allocate(max(spec.num_bytes, 1)) for spec in outputs]
            self._arena, self._zeroed = self._allocate(max(arena_bytes, 1)), self._allocate(max(self._zeros.size, 1))
            self._inputs = self._uploaded([np.ascontiguousarray(each) for each in inputs], constants)
            self._bound = [self._load(n, library) for n, library in enumerate(libraries)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the device memory back."""
        with suppress(TreadleError):  # of a device that is lost
            for graph in self._graphs.values():
                graph.close()
            while self._owned:
                self._driver.free(self._owned.pop())

    def outputs(self, number: int) -> list[Array]:
        """The outputs of one library, which are full of ones before it runs; DeviceLostError if it fails."""
        try:
            ones = [np.full(max(each.nbytes, 1), 0xFF, np.uint8) for each in self._results]
            for address, each in zip(self._outputs, ones, strict=True):
                self._driver.upload(address, each)
            if self._zeros.size:
                self._driver.upload(self._zeroed, self._zeros)
            self._driver.launch(self._bound[number][0])
            for address, each in zip(self._outputs, self._results, strict=True):
                self._driver.download(each, address)
            self._driver.synchronize()
        except TreadleError as error:
            raise DeviceLostError(str(error)) from error
        return [result.copy() for result in self._results]

    def run(self, rounds: int, seconds: float, clock: Clock = time.perf_counter) -> None:
        """Takes a sample of each library in each round, until `seconds` are over (at least three rounds). The library
        that a round begins with varies. DeviceLostError if a kernel fails."""
        try:
            for number, copies in enumerate(self._bound):
                if self.errors[number] is None:
                    self._graphs[number], self._calls[number] = self._captured(copies)
            self._rounds(rounds, seconds, clock)
        except TreadleError as error:
            raise DeviceLostError(str(error)) from error

    def _rounds(self, rounds: int, seconds: float, clock: Clock) -> None:
        numbers, start = list(self._graphs), clock()
        for turn in range(rounds if numbers else 0):
            if turn >= 3 and clock() - start > seconds:
                return
            first = turn * len(numbers) // rounds
            for number in (*numbers[first:], *numbers[:first]):
                self.samples[number].append(self._sample(self._graphs[number]) / self._calls[number])

    def _captured(self, copies: Sequence[Sequence[BoundLaunch]]) -> tuple[LaunchGraph, int]:
        """A graph of as many calls as a sample has, each on the next copy of the weights, and their number."""
        once = self._driver.capture([launch for copy in copies for launch in copy])
        try:
            self._sample(once)
            seconds = self._sample(once)
        finally:
            once.close()
        times = max(1, min(_MOST_LAUNCHES // len(copies), int(_GRAPH_SECONDS / max(seconds, 1e-7))))
        calls = [copy for _ in range(times) for copy in copies]
        return self._driver.capture([launch for copy in calls for launch in copy]), len(calls)

    def _sample(self, graph: LaunchGraph) -> float:
        start = self._driver.record()
        graph.launch()
        return self._driver.seconds_between(start, self._driver.record())

    def _uploaded(self, inputs: Sequence[Array], constants: Sequence[int]) -> list[list[int]]:
        """The addresses of the inputs, with the weights of each copy."""
        weights = sum(inputs[n].nbytes for n in constants)
        addresses = [self._filled(each) for each in inputs]
        found = [addresses]
        wanted = 2 * self._driver.attribute("L2_CACHE_SIZE") // weights + 1 if weights else 1
        free, _ = self._driver.memory()
        room = int(_OF_MEMORY * free / weights) if weights else 0
        for _ in range(min(wanted, room, _MOST_LAUNCHES) - 1):
            found.append([self._filled(inputs[n]) if n in constants else addresses[n] for n in range(len(inputs))])
        return found

    def _filled(self, array: Array) -> int:
        address = self._allocate(max(array.nbytes, 1))
        if array.nbytes:
            self._driver.upload(address, array)
            self._driver.synchronize()
        return address

    def _allocate(self, num_bytes: int) -> int:
        self._owned.append(self._driver.allocate(num_bytes))
        return self._owned[-1]

    def _load(self, number: int, library: GpuLibrary) -> list[list[BoundLaunch]]:
        """The launches of each copy; none, and an error, for what the device does not load."""
        try:
            functions = [
                self._driver.load(each.image, each.kernel, len(each.buffers), each.dynamic_shared, each.maps)
                for each in library.launches
            ]
        except TreadleError as error:
            self.errors[number] = str(error)
            return []
        return [
            [
                BoundLaunch(f, each.grid, each.block, self._arguments(each, inputs), each.dynamic_shared, each.maps)
                for f, each in zip(functions, library.launches, strict=True)
            ]
            for inputs in self._inputs
        ]

    def _arguments(self, launch: Launch, inputs: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._address(buffer, inputs) for buffer in launch.buffers)

    def _address(self, buffer: BufferRef, inputs: Sequence[int]) -> int:
        places = {"arena": self._arena, "zeroed": self._zeroed}
        if buffer.kind in places:
            return places[buffer.kind] + buffer.index
        return (inputs if buffer.kind == "input" else self._outputs)[buffer.index]
