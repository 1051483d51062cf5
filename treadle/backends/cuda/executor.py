"""Runs a compiled model on a GPU: its buffers, and its kernels in order."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import TracebackType
from typing import Any, cast

import numpy as np

from treadle.artifact.manifest import BufferMap
from treadle.backends.call_lock import CallLock, forks
from treadle.backends.cuda.device_array import DeviceArray, LentArray, copy_box, lent
from treadle.backends.cuda.device_memory import DeviceMemory, Staging
from treadle.backends.cuda.driver import BoundLaunch, Driver, LaunchGraph, Shape3
from treadle.backends.cuda.launcher import Addresses, Launcher
from treadle.backends.interface import BufferKind, BufferRef, TensorSpec
from treadle.backends.states import zeros
from treadle.backends.timeline import Recorder, now
from treadle.environment import load_environment
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
    maps: tuple[BufferMap, ...] = ()
    """Tensor maps of buffers, by the number of the argument."""


Result = np.ndarray | LentArray
"""An output: on the host, or on the device."""

_BLOCK = 256
"""Bytes to which each constant is aligned."""
_ALIGNMENT = 16
"""Bytes of the widest access of a kernel: a caller's buffer that is aligned to less is copied."""


class CudaProgram:
    """A model on a device: constants uploaded, kernels loaded, buffers allocated once.

    `arena_bytes` is the size of the scratch memory that intermediate tensors share; `zeroed_bytes` that of the memory
    that is zero before and after each launch: it is cleared at first, and after launches that failed. Runs of several
    threads take turns. A forked child cannot run it, since CUDA does not work there. Use it in a `with` statement, or
    call `close`, to give the memory back; the driver stays open unless the program owns it.

    A run launches one CUDA graph, captured at the first run of its launches (docs/adr/0093).
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

        `states`: what is kept between runs, on the device: `run` neither takes nor returns it.

        `owns_driver`: the driver is closed with the program, and nobody else uses it.

        Raises `TreadleError` for a buffer that does not exist, and when the device fails.
        """
        self._driver = driver
        self.inputs, self.outputs = given_of(inputs, states), made_of(outputs, states)
        self._states = tuple(states)
        self._state_specs = [inputs[state.argument] for state in states]
        given, made = given_of(range(len(inputs)), states), made_of(range(len(outputs)), states)
        self._given = [BufferRef("input", number) for number in given]
        self._made = [BufferRef("output", number) for number in made]
        self._specs = dict(zip((*self._given, *self._made), (*self.inputs, *self.outputs), strict=True))
        self._read = {buffer for launch in launches for buffer in launch.buffers}
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
        self._memory = DeviceMemory(driver, owns_driver)
        self._staging = Staging(driver)
        self._staged: object = None
        """The mark behind which pinned inputs may be written again; None: now."""
        self._in_flight: list[tuple[object, Sequence[LentArray]]] = []
        self._padded, self._words = set[int](), dict[int, bytes]()
        self._dispatches = tuple(dispatches)
        self._chosen: tuple[int, ...] | None = None if dispatches else tuple(range(len(launches)))
        self._names = [launch.kernel for launch in launches]
        self._recorder: Recorder | None = None
        self._calls = CallLock("CudaProgram")
        self._forks = forks()
        self._zeros = np.zeros(zeroed_bytes, np.uint8)
        self._is_cleared = False
        self._addresses: dict[BufferKind, list[int]] = {}
        self._own: dict[BufferRef, int] = {}
        self._launches: list[BoundLaunch] = []
        self._launcher: Launcher | None = None
        try:
            self._open(launches, sizes, contiguous)
        except BaseException:
            self.close()
            raise

    def _open(
        self, launches: Sequence[Launch], sizes: Mapping[BufferKind, Sequence[int]], constants: Sequence[np.ndarray]
    ) -> None:
        """Allocates buffers of these sizes, uploads constants, clears states and zeroed memory, and loads kernels."""
        in_place = {state.argument: state.result for state in self._states if state.in_place}
        for kind, each in sizes.items():
            allocated = [0 if kind == "input" and n in in_place else size for n, size in enumerate(each)]
            self._addresses[kind] = self._allocated(kind, allocated)
        for argument, result in in_place.items():
            self._addresses["input"][argument] = self._addresses["output"][result]
        self._own = {ref: self._address(ref) for ref in (*self._given, *self._made)}
        self._clear_states()
        for address, constant in zip(self._addresses["constant"], constants, strict=True):
            self._driver.upload(address, constant)
        self._clear()
        self._launches = self._bind(launches)
        buffers, by_graph = [launch.buffers for launch in launches], load_environment().cuda_graph
        self._launcher = Launcher(self._driver, self._launches, buffers, self._own, by_graph=by_graph)
        self._driver.synchronize()

    def __enter__(self) -> CudaProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def lent(self, value: object, where: str, stream: int | None = None) -> LentArray:
        """The array that a value on the device is, for a run with that stream; TreadleError, which names `where`, for
        one that a run cannot take."""
        return lent(value, where, self._driver, self._driver.stream_handle if stream is None else stream)

    def run(
        self, arrays: Sequence[Result], out: Sequence[LentArray | None] | None = None, stream: int | None = None
    ) -> list[Any]:
        """The outputs for `arrays`, which must have the inputs' types and shapes, in order; on the device a shape may
        be smaller where the program was compiled for a range.

        If all inputs are on the host and there is no `out`, the outputs are new arrays there, complete. Else they are
        on the device, in `out` where it has an array for one: the run is queued behind what the caller's `stream` has
        queued now, and what is queued there later waits for it. Without a stream, who takes them by DLPack or
        `__cuda_array_interface__` waits for them, and inputs are kept until the device has read them.

        Raises `TreadleError` for an array that does not fit, and when the device fails.
        """
        return self._calls.call(lambda: self._run(arrays, out, stream))

    def _run(self, arrays: Sequence[Result], out: Sequence[LentArray | None] | None, stream: int | None) -> list[Any]:
        self._check(arrays)
        if stream is not None:  # first, since a capture of the caller's allows nothing else
            self._follow(stream)
        self._release()
        if out is None and not any(isinstance(array, LentArray) for array in arrays):
            return self._run_on_host(cast("Sequence[np.ndarray]", arrays))
        return self._run_on_device(arrays, out or [None] * len(self.outputs), stream)

    def _run_on_host(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        start = now() if self._recorder is not None else 0
        self._upload(arrays)
        chosen, pinned = self._choose(arrays), [self._staging.array(*each) for each in enumerate(self.outputs)]
        with self._launching():
            begun, marks = self._launched(chosen, self._point(chosen, self._own))
            for result, ref in zip(pinned, self._made, strict=True):
                self._driver.download(result, self._own[ref])
            self._driver.synchronize()
        if self._recorder is not None:
            self._recorder.give(start, now(), self._timed(chosen, begun, marks))
        self._advance_states()
        return [result.copy() for result in pinned]

    def _run_on_device(
        self, arrays: Sequence[Result], out: Sequence[LentArray | None], stream: int | None
    ) -> list[LentArray]:
        start, ours = now() if self._recorder is not None else 0, self._driver.stream_handle
        check_out(self.outputs, out, [array for array in arrays if isinstance(array, LentArray)])
        results = self._results(out, stream)
        for array in (*arrays, *results):
            if isinstance(array, LentArray) and array.stream is not None:
                self._driver.order(array.stream, ours)
        own = {ref: array for ref, array in zip(self._given, arrays, strict=True) if isinstance(array, np.ndarray)}
        given = {ref: array for ref, array in zip(self._given, arrays, strict=True) if isinstance(array, LentArray)}
        given |= dict(zip(self._made, results, strict=True))
        chosen = self._choose(arrays)
        usable = {ref: array.pointer for ref, array in given.items() if self._is_usable(ref, array)}
        with self._launching():
            used = self._point(chosen, {**self._own, **usable})
            self._copy_in(own, {ref: array for ref, array in given.items() if used[ref] != array.pointer})
            begun, marks = self._launched(chosen, used)
            for ref, array in zip(self._made, results, strict=True):
                if used[ref] != array.pointer:
                    self._driver.copy(array.pointer, used[ref], array.nbytes)
            self._advance_states()
        if self._recorder is not None:
            self._driver.synchronize()
            self._recorder.give(start, now(), self._timed(chosen, begun, marks))
        self._hand_over(stream, [array for array in (*arrays, *out) if isinstance(array, LentArray)])
        return results

    def _results(self, out: Sequence[LentArray | None], stream: int | None) -> list[LentArray]:
        """Where the outputs go: the caller's buffers, and new memory."""
        results: list[LentArray] = []
        for spec, given in zip(self.outputs, out, strict=True):
            if given is not None:
                results.append(given)
                continue
            try:
                block = self._memory.take(spec.num_bytes, stream)
            except TreadleError as error:
                results.clear()
                self._memory.trim()
                where, accepted = (
                    f"output '{spec.name}' on cuda:{self._driver.number}",
                    "a device with room for results",
                )
                raise TreadleError(f"there is no memory for it: {error}", where, accepted) from error
            results.append(DeviceArray(block, spec.shape, spec.dtype, stream))
        return results

    def _is_usable(self, ref: BufferRef, array: LentArray) -> bool:
        """Whether kernels may take a caller's buffer as it is."""
        spec = self._specs[ref]
        return array.shape == spec.shape and array.nbytes > 0 and array.pointer % _ALIGNMENT == 0

    def _copy_in(self, host: Mapping[BufferRef, np.ndarray], device: Mapping[BufferRef, LentArray]) -> None:
        """Queues the copies of inputs into the program's own buffers."""
        for ref, array in host.items():
            self._upload_behind(ref, array)
        for ref, array in device.items():
            if ref.kind != "input" or ref not in self._read:
                continue
            spec, target = self._specs[ref], self._own[ref]
            if array.shape == spec.shape:
                self._driver.copy(target, array.pointer, array.nbytes)
                continue
            if ref.index not in self._padded:  # beyond the extents there are numbers from the first call on
                self._padded.add(ref.index)
                self._driver.fill(target, 0, -(-spec.num_bytes // 4))
            box = (target, spec.shape), (array.pointer, array.shape)
            copy_box(self._driver, *box, array.shape, spec.dtype.itemsize)

    def _upload_behind(self, ref: BufferRef, array: np.ndarray) -> None:
        """Queues the copy of an input from the host, which the caller may change after the run. Extents are written as
        words: they need neither pinned memory nor a copy."""
        spec, target = self._specs[ref], self._own[ref]
        if ref not in self._read:
            return
        if not spec.shape and spec.num_bytes % 4 == 0:
            value = array.tobytes()
            if self._words.get(ref.index) != value:
                for n, word in enumerate(np.frombuffer(value, np.uint32)):
                    self._driver.fill(target + 4 * n, int(word), 1)
                self._words[ref.index] = value
            return
        self._driver.check()
        pinned = self._pinned_input(ref, spec)
        np.copyto(pinned, array)
        self._driver.upload(target, pinned)
        self._staged = self._driver.mark()

    def _pinned_input(self, ref: BufferRef, spec: TensorSpec) -> np.ndarray:
        """The pinned memory of an input, once no copy reads it any more."""
        if self._staged is not None:
            self._driver.wait_for(self._staged)
            self._staged = None
        return self._staging.array(ref, spec)

    def _follow(self, stream: int) -> None:
        """Queues what comes behind a caller's stream."""
        where = f"stream {stream:#x}"
        accepted = f"a stream of cuda:{self._driver.number}, such as torch.cuda.current_stream().cuda_stream"
        try:
            capturing = self._driver.is_capturing(stream)
            if not capturing:
                self._driver.order(stream, self._driver.stream_handle)
        except TreadleError as error:
            raise TreadleError(f"the stream cannot be used: {error.message}", where, accepted) from error
        if capturing:
            accepted = "a call outside the capture: a call launches a graph of its own"
            raise TreadleError("work on the stream is being captured", where, accepted)

    def _hand_over(self, stream: int | None, arrays: Sequence[LentArray]) -> None:
        """After a run on a caller's arrays: his stream waits for it; without one, they are kept until it is done."""
        if stream is None:
            self._in_flight.append((self._driver.mark(), arrays))
            return
        self._driver.order(self._driver.stream_handle, stream)
        for array in arrays:
            if isinstance(array, DeviceArray):
                array.used_on(stream)

    def _release(self) -> None:
        """Lets go of arrays that the device has read."""
        while self._in_flight and self._driver.is_reached(self._in_flight[0][0]):
            self._in_flight.pop(0)

    def _point(self, chosen: tuple[int, ...], addresses: Addresses) -> Addresses:
        assert self._launcher is not None
        return self._launcher.point(chosen, addresses) if self._recorder is None else addresses

    def _launched(self, chosen: tuple[int, ...], addresses: Addresses) -> tuple[int, list[object]]:
        """Queues the chosen launches; if they are recorded, when, and the events before, between and behind them."""
        assert self._launcher is not None
        if self._recorder is None:
            self._launcher.launch(chosen, addresses)
            return 0, []
        begun, marks = now(), [self._driver.record()]
        for number in chosen:
            self._driver.launch([self._launcher.bound(number, addresses)])
            marks.append(self._driver.record())
        return begun, marks

    def _timed(self, chosen: Sequence[int], begun: int, marks: Sequence[object]) -> list[tuple[str, int, int]]:
        """The chosen launches between these events, as if the first one was when the host queued it."""
        times = [begun + round(1e9 * self._driver.seconds_between(marks[0], mark)) for mark in marks]
        names = [self._names[number] for number in chosen]
        return [(name, *span) for name, span in zip(names, pairwise(times), strict=True)]

    def trace(self, recorder: Recorder | None) -> None:
        """From the next run on, its launches are recorded, or with None no more; after a run that is under way.

        Each launch then stands between two events, which adds some microseconds to it, and a run waits for the device.
        """
        self._calls.call(lambda: setattr(self, "_recorder", recorder))

    def clear_states(self) -> None:
        """Sets all states to 0, after a run that is under way."""
        self._calls.call(self._clear_states)

    def _clear_states(self) -> None:
        for state, spec in zip(self._states, self._state_specs, strict=True):
            self._driver.upload(self._addresses["input"][state.argument], zeros(spec))
            self._driver.synchronize()

    def _advance_states(self) -> None:
        """Queues the copies by which what the run made of states is what the next one reads."""
        for state, spec in zip(self._states, self._state_specs, strict=True):
            if not state.in_place:
                argument, result = self._addresses["input"][state.argument], self._addresses["output"][state.result]
                self._driver.copy(argument, result, spec.num_bytes)

    def capture(self) -> LaunchGraph:
        """The kernels of the last `run` as one CUDA graph, on the program's own inputs, which are those of the last run
        from the host; close it before the program.

        Where runs take one of several kernels, it holds for the extents of that run.
        """
        return self._calls.call(self._capture)

    def _capture(self) -> LaunchGraph:
        self._check_open("capturing a graph")
        if self._chosen is None:
            raise TreadleError("which kernels run is not known yet", "capturing a graph", "a run before it")
        if not self._is_cleared:
            self._clear()
        self._is_cleared = False  # whether the graph's launches succeed is not known here
        return self._driver.capture([self._launches[number] for number in self._chosen])

    def measure(self, arrays: Sequence[np.ndarray], repeats: int, warmup: int = 1) -> list[float]:
        """Seconds of device time that each of `repeats` runs of the kernels takes, without the copies.

        A run is one launch of a CUDA graph: of small kernels queued one by one, the events would time the queueing.
        """
        return self._calls.call(lambda: self._measure(arrays, repeats, warmup))

    def _measure(self, arrays: Sequence[np.ndarray], repeats: int, warmup: int) -> list[float]:
        self._check(arrays)
        self._upload(arrays)
        launches = [self._launches[number] for number in self._choose(arrays)]
        with self._launching(), closing(self._driver.capture(launches)) as graph:
            graph.launch(warmup)
            marks = [self._driver.record()]
            for _ in range(repeats):
                graph.launch()
                marks.append(self._driver.record())
            self._driver.synchronize()
        return [self._driver.seconds_between(start, end) for start, end in pairwise(marks)]

    def close(self) -> None:
        """Gives the device memory back, after a run that is under way, but for results on the device: these go with
        their last references. The program cannot run afterwards."""
        self._calls.call(self._close)

    def _close(self) -> None:
        if self._forks != forks():
            self._owned.clear()  # the parent's, as are the driver and all else
        elif self._owned:
            if self._staged is not None or self._in_flight:
                with suppress(TreadleError):  # of a context that a kernel has broken
                    self._driver.synchronize()
            if self._launcher is not None:
                self._launcher.close()
            self._staging.close()
        self._in_flight.clear()
        while self._owned:
            self._driver.free(self._owned.pop())
        self._launches = []
        self._memory.close()

    @contextmanager
    def _launching(self) -> Generator[None]:
        """A context around launches. One that fails may leave unfinished kernels, and copies in flight."""
        if not self._is_cleared:
            self._clear()
        self._is_cleared = False
        try:
            yield
        except BaseException:
            self._words.clear()
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

    def _check(self, arrays: Sequence[Result]) -> None:
        """TreadleError for arrays that do not fit the inputs."""
        self._check_open("run")
        if len(arrays) != len(self.inputs):
            accepted = ", ".join(spec.name for spec in self.inputs)
            raise TreadleError(f"got {len(arrays)} inputs, expected {len(self.inputs)}", "run", accepted)
        for spec, array in zip(self.inputs, arrays, strict=True):
            smaller = isinstance(array, LentArray) and replace(spec, dense=True).takes(array.shape)
            if (array.shape != spec.shape and not smaller) or array.dtype != spec.dtype:
                accepted = f"{spec.dtype} of shape {spec.shape}"
                raise TreadleError(f"got {array.dtype} of shape {array.shape}", f"input '{spec.name}'", accepted)

    def _upload(self, arrays: Sequence[np.ndarray]) -> None:
        """Queues the copies of the inputs from pinned memory, which stays as it is until the device is synchronized."""
        self._driver.check()  # pinned memory would be gone with the device
        self._words.clear()
        for ref, spec, array in zip(self._given, self.inputs, arrays, strict=True):
            pinned = self._pinned_input(ref, spec)
            np.copyto(pinned, array)
            self._driver.upload(self._own[ref], pinned)

    def _choose(self, arrays: Sequence[Result]) -> tuple[int, ...]:
        """The numbers of the launches that a run on some inputs takes."""
        if self._dispatches:
            given = {ref.index: array for ref, array in zip(self._given, arrays, strict=True)}

            def value(number: int) -> int:
                return int(cast("np.ndarray", given[number]))

            self._chosen = tuple(chosen_launches(len(self._launches), self._dispatches, value))
        assert self._chosen is not None
        return self._chosen

    def _allocated(self, kind: BufferKind, sizes: Sequence[int]) -> list[int]:
        """The addresses of buffers of a kind; constants share one block."""
        if kind != "constant":
            return [self._allocate(size) for size in sizes]
        ends = list(accumulate(-(-size // _BLOCK) * _BLOCK for size in sizes))
        begin = self._allocate(ends[-1]) if ends else 0
        return [begin + end for end in [0, *ends][: len(sizes)]]

    def _allocate(self, num_bytes: int) -> int:
        address = self._driver.allocate(-(-num_bytes // 4) * 4)  # so that it can be filled by words
        self._owned.append(address)
        return address

    def _bind(self, launches: Sequence[Launch]) -> list[BoundLaunch]:
        """Launches with their functions and addresses; a kernel that is launched twice is loaded once."""
        functions: dict[tuple[object, ...], object] = {}
        bound: list[BoundLaunch] = []
        for launch in launches:
            key = (launch.image, launch.kernel, launch.dynamic_shared, launch.maps)
            if key not in functions:
                functions[key] = self._driver.load(
                    launch.image, launch.kernel, len(launch.buffers), launch.dynamic_shared, launch.maps
                )
            arguments = tuple(self._address(buffer) for buffer in launch.buffers)
            shared, maps = launch.dynamic_shared, launch.maps
            bound.append(BoundLaunch(functions[key], launch.grid, launch.block, arguments, shared, maps))
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


def check_out(specs: Sequence[TensorSpec], out: Sequence[LentArray | None], inputs: Sequence[LentArray]) -> None:
    """Raises `TreadleError` for buffers that outputs cannot be written to."""
    written: list[LentArray] = []
    for spec, array in zip(specs, out, strict=True):
        if array is None:
            continue
        where = f"output '{spec.name}'"
        if array.shape != spec.shape or array.dtype != spec.dtype:
            raise TreadleError(f"the buffer is {array.dtype} of shape {array.shape}", where, str(spec))
        if array.read_only:
            raise TreadleError("the buffer is read-only", where, "one that its library lets others write")
        if any(_overlap(array, other) for other in (*inputs, *written)):
            message = "the buffer overlaps an input or another output"
            raise TreadleError(message, where, "memory of its own: a call reads inputs while it writes")
        written.append(array)


def _overlap(a: LentArray, b: LentArray) -> bool:
    return a.pointer < b.pointer + b.nbytes and b.pointer < a.pointer + a.nbytes


__all__ = ["BufferKind", "BufferRef", "CudaProgram", "Launch", "TensorSpec"]
