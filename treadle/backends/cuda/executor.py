"""Runs a compiled model on a GPU: its buffers, and its kernels in order."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType

import numpy as np

from treadle.backends.call_lock import CallLock, forks
from treadle.backends.cuda.driver import BoundLaunch, Driver, LaunchGraph, Shape3
from treadle.backends.interface import BufferKind, BufferRef, TensorSpec
from treadle.backends.states import StateMemory, zeros
from treadle.backends.timeline import Recorder, now
from treadle.errors import TreadleError
from treadle.shapes.decision_tree import Dispatch, chosen_launches
from treadle.shapes.states import State, given_of, made_of

_ADDRESSED: tuple[BufferKind, ...] = ("arena", "zeroed")
"""Kinds of buffers that are ranges of one block of memory, given by their first byte."""


@dataclass(frozen=True)
class Launch:
    """One kernel of a compiled unit, and the buffers that it is given in the order of its arguments."""

    kernel: str
    image: bytes
    """The cubin."""
    grid: Shape3
    block: Shape3
    buffers: tuple[BufferRef, ...]
    dynamic_shared: int = 0
    """Bytes."""


class CudaProgram:
    """A model on a device: constants uploaded, kernels loaded, buffers allocated once.

    `arena_bytes` is the size of the scratch memory that intermediate tensors share; `zeroed_bytes` that of the memory
    that is zero before and after each launch: it is cleared at first, and after launches that failed. Runs of several
    threads take turns. A forked child cannot run it, since CUDA does not work there. Use it in a `with` statement, or
    call `close`, to give the memory back; the driver stays open unless the program owns it.
    """

    def __init__(
        self,
        driver: Driver,
        launches: Sequence[Launch],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        constants: Sequence[np.ndarray] = (),
        arena_bytes: int = 0,
        zeroed_bytes: int = 0,
        *,
        owns_driver: bool = False,
        dispatches: Sequence[Dispatch] = (),
        states: Sequence[State] = (),
    ) -> None:
        """`dispatches`: where a run takes one of several launches, by the values of inputs.

        `states`: what is kept between runs: `run` neither takes nor returns it. In place it stays on the device; others
        are copied to the host and back.

        `owns_driver`: the driver is closed with the program, and nobody else uses it.

        Raises `TreadleError` for a buffer that does not exist, and when the device fails.
        """
        self._driver, self._owns_driver = driver, owns_driver
        self.inputs, self.outputs = given_of(inputs, states), made_of(outputs, states)
        self._kept = tuple(states)
        self._copied = [state for state in states if not state.in_place]
        self._states = StateMemory(self._copied, inputs)
        self._on_device = {state.result: inputs[state.argument] for state in states if state.in_place}
        self._numbers = given_of(range(len(inputs)), states)
        contiguous = [np.ascontiguousarray(constant) for constant in constants]
        sizes: dict[BufferKind, list[int]] = {
            "input": [spec.num_bytes for spec in inputs],
            "output": [spec.num_bytes for spec in outputs],
            "constant": [constant.nbytes for constant in contiguous],
            "arena": [arena_bytes],
            "zeroed": [zeroed_bytes],
        }
        for launch in launches:
            _check_buffers(launch, sizes)
        self._owned: list[int] = []
        self._launches: list[BoundLaunch] = []
        self._dispatches = tuple(dispatches)
        self._chosen: list[BoundLaunch] = []
        self._names: Mapping[int, str] = {}
        self._recorder: Recorder | None = None
        self._calls = CallLock("CudaProgram")
        self._forks = forks()
        self._zeros = np.zeros(zeroed_bytes, np.uint8)
        self._is_cleared = False
        try:
            in_place = {state.argument: state.result for state in states if state.in_place}
            sizes["input"] = [0 if n in in_place else size for n, size in enumerate(sizes["input"])]
            self._addresses = {kind: [self._allocate(size) for size in each] for kind, each in sizes.items()}
            for argument, result in in_place.items():
                self._addresses["input"][argument] = self._addresses["output"][result]
            self._clear_states()
            for address, constant in zip(self._addresses["constant"], contiguous, strict=True):
                driver.upload(address, constant)
            self._clear()
            self._launches = self._bind(launches)
            self._names = {id(bound): launch.kernel for bound, launch in zip(self._launches, launches, strict=True)}
            self._chosen = [] if dispatches else self._launches
            driver.synchronize()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> CudaProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The model's outputs for `arrays`, which must have the inputs' shapes and types, in order.

        Raises `TreadleError` for an array that does not, and when the device fails.
        """
        return self._calls.call(lambda: self._run(arrays))

    def _run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        start = now() if self._recorder is not None else 0
        staged = self._upload(arrays)
        results = [np.empty(spec.shape, spec.dtype) for spec in self.outputs]
        with self._launching():
            begun, marks = self._launched()
            made = made_of(self._addresses["output"], self._kept)
            for result, address in zip(results, made, strict=True):
                self._driver.download(result, address)
            for state, array in zip(self._copied, self._states.after, strict=True):
                self._driver.download(array, self._addresses["output"][state.result])
            self._driver.synchronize()
        if self._recorder is not None:
            self._recorder.give(start, now(), self._timed(begun, marks))
        self._states.advance()
        del staged
        return results

    def _launched(self) -> tuple[int, list[object]]:
        """Queues the chosen launches; if they are recorded, when, and the events before, between and behind them."""
        if self._recorder is None:
            self._driver.launch(self._chosen)
            return 0, []
        begun, marks = now(), [self._driver.record()]
        for launch in self._chosen:
            self._driver.launch([launch])
            marks.append(self._driver.record())
        return begun, marks

    def _timed(self, begun: int, marks: Sequence[object]) -> list[tuple[str, int, int]]:
        """The chosen launches between these events, as if the first one was when the host queued it."""
        times = [begun + round(1e9 * self._driver.seconds_between(marks[0], mark)) for mark in marks]
        names = [self._names[id(launch)] for launch in self._chosen]
        return [(name, *span) for name, span in zip(names, pairwise(times), strict=True)]

    def trace(self, recorder: Recorder | None) -> None:
        """From the next run on, its launches are recorded, or with None no more; after a run that is under way.

        Each launch then stands between two events, which adds some microseconds to it.
        """
        self._calls.call(lambda: setattr(self, "_recorder", recorder))

    def clear_states(self) -> None:
        """Sets all states to 0, after a run that is under way."""
        self._calls.call(self._clear_states)

    def _clear_states(self) -> None:
        self._states.clear()
        for result, spec in self._on_device.items():
            self._driver.upload(self._addresses["output"][result], zeros(spec))
            self._driver.synchronize()

    def capture(self) -> LaunchGraph:
        """The kernels of the last `run` as one CUDA graph, on its inputs; close it before the program.

        Where runs take one of several kernels, it holds for the extents of that run.
        """
        return self._calls.call(self._capture)

    def _capture(self) -> LaunchGraph:
        self._check_open("capturing a graph")
        if self._dispatches and not self._chosen:
            raise TreadleError("which kernels run is not known yet", "capturing a graph", "a run before it")
        if not self._is_cleared:
            self._clear()
        self._is_cleared = False  # whether the graph's launches succeed is not known here
        return self._driver.capture(self._chosen)

    def measure(self, arrays: Sequence[np.ndarray], repeats: int, warmup: int = 1) -> list[float]:
        """Seconds of device time that each of `repeats` runs of the kernels takes, without the copies.

        A run is one launch of a CUDA graph: of small kernels queued one by one, the events would time the queueing.
        """
        return self._calls.call(lambda: self._measure(arrays, repeats, warmup))

    def _measure(self, arrays: Sequence[np.ndarray], repeats: int, warmup: int) -> list[float]:
        staged = self._upload(arrays)
        with self._launching(), closing(self._driver.capture(self._chosen)) as graph:
            graph.launch(warmup)
            marks = [self._driver.record()]
            for _ in range(repeats):
                graph.launch()
                marks.append(self._driver.record())
            self._driver.synchronize()
        del staged
        return [self._driver.seconds_between(start, end) for start, end in pairwise(marks)]

    def close(self) -> None:
        """Gives the device memory back, after a run that is under way. The program cannot run afterwards."""
        self._calls.call(self._close)

    def _close(self) -> None:
        if self._forks != forks():
            self._owned.clear()  # the parent's, as is the driver
            self._owns_driver = False
        while self._owned:
            self._driver.free(self._owned.pop())
        self._launches = self._chosen = []
        if self._owns_driver:
            self._driver.close()

    @contextmanager
    def _launching(self) -> Generator[None]:
        """A context around launches. One that fails may leave unfinished kernels, and copies in flight."""
        if not self._is_cleared:
            self._clear()
        self._is_cleared = False
        try:
            yield
        except BaseException:
            with suppress(TreadleError):
                self._driver.synchronize()
            raise
        self._is_cleared = True

    def _clear(self) -> None:
        """Queues zeros for the zeroed memory."""
        if self._zeros.size:
            self._driver.upload(self._addresses["zeroed"][0], self._zeros)
        self._is_cleared = True

    def _check_open(self, where: str) -> None:
        if self._forks != forks():
            accepted = "a process that is started, not forked ('spawn' or 'forkserver' of multiprocessing)"
            raise TreadleError("the program was opened before the process was forked", where, accepted)
        if not self._owned:
            raise TreadleError("the program was closed", where=where)

    def _upload(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Queues the copies of the inputs; what it returns must live until the device is synchronized."""
        self._check_open("run")
        if len(arrays) != len(self.inputs):
            accepted = ", ".join(spec.name for spec in self.inputs)
            raise TreadleError(f"got {len(arrays)} inputs, expected {len(self.inputs)}", "run", accepted)
        staged: list[np.ndarray] = []
        given = given_of(self._addresses["input"], self._kept)
        for spec, array, address in zip(self.inputs, arrays, given, strict=True):
            if array.shape != spec.shape or array.dtype != spec.dtype:
                accepted = f"{spec.dtype} of shape {spec.shape}"
                raise TreadleError(f"got {array.dtype} of shape {array.shape}", f"input '{spec.name}'", accepted)
            staged.append(np.ascontiguousarray(array))
            self._driver.upload(address, staged[-1])
        self._choose(staged)
        for state, array in zip(self._copied, self._states.now, strict=True):
            self._driver.upload(self._addresses["input"][state.argument], array)
        return staged

    def _choose(self, inputs: Sequence[np.ndarray]) -> None:
        """Keeps the launches that a run on some inputs takes."""
        if self._dispatches:
            given = dict(zip(self._numbers, inputs, strict=True))
            chosen = chosen_launches(len(self._launches), self._dispatches, lambda number: int(given[number]))
            self._chosen = [self._launches[number] for number in chosen]

    def _allocate(self, num_bytes: int) -> int:
        address = self._driver.allocate(num_bytes)
        self._owned.append(address)
        return address

    def _bind(self, launches: Sequence[Launch]) -> list[BoundLaunch]:
        """Launches with their functions and addresses; a kernel that is launched twice is loaded once."""
        functions: dict[tuple[bytes, str, int], object] = {}
        bound: list[BoundLaunch] = []
        for launch in launches:
            key = (launch.image, launch.kernel, launch.dynamic_shared)
            if key not in functions:
                functions[key] = self._driver.load(
                    launch.image, launch.kernel, len(launch.buffers), launch.dynamic_shared
                )
            arguments = tuple(self._address(buffer) for buffer in launch.buffers)
            bound.append(BoundLaunch(functions[key], launch.grid, launch.block, arguments, launch.dynamic_shared))
        return bound

    def _address(self, buffer: BufferRef) -> int:
        if buffer.kind in _ADDRESSED:
            return self._addresses[buffer.kind][0] + buffer.index
        return self._addresses[buffer.kind][buffer.index]


def _check_buffers(launch: Launch, sizes: Mapping[BufferKind, Sequence[int]]) -> None:
    """Raises `TreadleError` unless every buffer of `launch` exists."""
    for position, buffer in enumerate(launch.buffers):
        limit = sizes[buffer.kind][0] if buffer.kind in _ADDRESSED else len(sizes[buffer.kind])
        if 0 <= buffer.index < limit:
            continue
        where = f"argument {position} of kernel '{launch.kernel}'"
        raise TreadleError(f"there is no {buffer.kind} {buffer.index}", where, f"0 to {limit - 1}")


__all__ = ["BufferKind", "BufferRef", "CudaProgram", "Launch", "TensorSpec"]
