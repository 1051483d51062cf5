"""Running a compiled model on this machine's cores, through ctypes."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from treadle.backends.call_lock import CallLock
from treadle.backends.interface import TensorSpec
from treadle.backends.states import StateMemory
from treadle.backends.timeline import Recorder
from treadle.environment import load_environment
from treadle.errors import TreadleError
from treadle.shapes.states import State, given_of, made_of

# The threads that run kernels on a CPU, of one model or of several.

LAYOUT = "treadle_pool_layout"
"""The symbol by which libraries know each other's pools (see runtime/pool.h)."""


class NativePool:
    """Threads that a library started, for itself and for all with which it may share them.

    library: whose code the threads run
    calls:   the lock under which they are used
    address: of its `struct treadle_pool`; None once they have ended
    record:  its `treadle_pool_record`; None in libraries of before there was one
    trace:   its `treadle_pool_trace`, likewise
    """

    def __init__(self, library: ctypes.CDLL, calls: CallLock, address: int):
        self.library, self.calls = library, calls
        self.address: int | None = address
        self.record: Any = getattr(library, "treadle_pool_record", None)
        if self.record is not None:
            self.record.argtypes, self.record.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long], None
        self.trace: Any = getattr(library, "treadle_pool_trace", None)
        if self.trace is not None:
            self.trace.argtypes, self.trace.restype = [ctypes.c_void_p, ctypes.c_void_p], None

    def open_address(self) -> int:
        """The address; TreadleError once the threads have ended. The caller has the lock."""
        if self.address is None:
            raise _closed_error()
        return self.address

    def destroy(self) -> None:
        """Ends the threads; the caller has the lock."""
        destroy = self.library.treadle_pool_destroy
        destroy.argtypes, destroy.restype = [ctypes.c_void_p], None
        address, self.address = self.address, None  # an interrupt must not leave that of threads that have ended
        destroy(address)


class ThreadPool:
    """Threads that several models for this machine's CPU share; their calls take turns.

    ```python
    with treadle.ThreadPool(threads=4) as pool:
        detector = treadle.load("detector.treadle", threads=pool)
        reader = treadle.load("reader.treadle", threads=pool)
    ```
    threads: of a call, the calling thread included; default: as many as there are `cpus`, else TREADLE_NUM_THREADS
    cpus:    on Linux: a CPU for each thread, to which it is bound, so that it runs on no other. The first one is left
             to the thread that calls, which is *not* bound: `os.sched_setaffinity(0, {cpus[0]})` there, once the pool
             is made, does that. Without `cpus` threads run on every CPU of the process but the caller's.

    The threads start when the first model is opened. Closing a model does not end them; `close`, leaving a `with`, the
    end of the interpreter, or collection of the pool and all its models do, after a call that is running. A forked
    child has threads of its own from its first call on. Models that were compiled before pools could be shared take
    turns, too, but on threads of their own.

    TreadleError: threads below 1; CPUs that the process may not use, that are named twice, or not as many as threads;
    `cpus` on a system that cannot bind threads.
    """

    def __init__(self, threads: int | None = None, cpus: Sequence[int] | None = None):
        self.cpus = None if cpus is None else _usable(cpus)
        default = load_environment().num_threads if self.cpus is None else len(self.cpus)
        self.threads = default if threads is None else threads
        if self.threads < 1:
            raise TreadleError(f"threads is {self.threads}", "ThreadPool", "a number from 1 upwards")
        if self.cpus is not None and len(self.cpus) != self.threads:
            message = f"`cpus` has {len(self.cpus)} for {self.threads} threads"
            raise TreadleError(message, "ThreadPool", "a CPU for each thread, the first one for that which calls")
        self._calls = CallLock("ThreadPool")
        self._natives: dict[object, NativePool] = {}
        self._closed = False
        weakref.finalize(self, _finish, self._calls, self._natives)

    def __repr__(self) -> str:
        cpus = "" if self.cpus is None else f", cpus={list(self.cpus)}"
        return f"ThreadPool(threads={self.threads}{cpus}){' (closed)' if self._closed else ''}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called: models of the pool cannot be called any more."""
        return self._closed

    def close(self) -> None:
        """Ends the threads, after a call that is running; a later call of a model of the pool is a TreadleError. A
        second `close` does nothing."""
        self._closed = True
        self._calls.call(lambda: _end(self._natives))

    def opened(self, library: ctypes.CDLL) -> NativePool:
        """The threads on which the kernels of a library may run; the first library of a layout starts them.

        TreadleError if the pool is closed, and for threads that cannot be started. AttributeError for a library that
        has no pool.
        """
        return self._calls.call(lambda: self._native(library))

    def _native(self, library: ctypes.CDLL) -> NativePool:
        """As `opened`; the caller has the lock."""
        if self._closed:
            raise _closed_error()
        layout = _layout(library)
        if layout not in self._natives:
            self._natives[layout] = NativePool(library, self._calls, self._started(library))
        return self._natives[layout]

    def _started(self, library: ctypes.CDLL) -> int:
        """The address of a new pool of the library."""
        if self.cpus is None:
            create, arguments = library.treadle_pool_create, [self.threads]
            create.argtypes, create.restype = [ctypes.c_long], ctypes.c_void_p
            accepted = "fewer: `threads`, or the variable TREADLE_NUM_THREADS"
        else:
            create, arguments = _create_on(library), [self.threads, (ctypes.c_int * self.threads)(*self.cpus)]
            create.argtypes, create.restype = [ctypes.c_long, ctypes.POINTER(ctypes.c_int)], ctypes.c_void_p
            accepted = "CPUs that the process still may use"
        address = create(*arguments)
        if not address:
            raise TreadleError(f"cannot start {self.threads} threads", repr(self), accepted)
        return address


def _create_on(library: ctypes.CDLL) -> Any:
    try:
        return library.treadle_pool_create_on
    except AttributeError as error:
        message = "the model is of before threads could be bound to CPUs"
        raise TreadleError(message, "ThreadPool", "the model compiled again, or a pool without `cpus`") from error


def _layout(library: ctypes.CDLL) -> object:
    """Equal for libraries that may share threads; of one that does not say, it is the library itself."""
    try:
        return ctypes.c_long.in_dll(library, LAYOUT).value
    except ValueError:
        return library


def _closed_error() -> TreadleError:
    return TreadleError("the thread pool is closed", "ThreadPool", "a pool that is open while its models are called")


def _finish(calls: CallLock, natives: dict[object, NativePool]) -> None:
    """Ends all threads, once no call is under way."""
    calls.call(lambda: _end(natives))


def _end(natives: dict[object, NativePool]) -> None:
    while natives:
        natives.popitem()[1].destroy()


def _usable(cpus: Sequence[int]) -> tuple[int, ...]:
    """The CPUs, if threads of this process can be bound to them, each to one; else TreadleError."""
    if not hasattr(os, "sched_getaffinity"):
        raise TreadleError("threads cannot be bound to CPUs on this system", "ThreadPool", "no `cpus`, or Linux")
    allowed, found = os.sched_getaffinity(0), tuple(int(cpu) for cpu in cpus)
    twice = sorted({cpu for cpu in found if found.count(cpu) > 1})
    absent = sorted({cpu for cpu in found if cpu not in allowed})
    if twice or absent:
        what = "CPUs that the process may not use" if absent else "CPUs that are named twice"
        message = f"{what}: {', '.join(map(str, absent or twice))}"
        raise TreadleError(message, "ThreadPool", f"different ones of {', '.join(map(str, sorted(allowed)))}")
    return found


ALIGNMENT = 64
"""Bytes: outputs, constants and the arena begin at a multiple of it (a cache line, and a 512-bit vector), so that no
vector of theirs lies in two lines. Kernels need the alignment of an element only, and inputs are read where they lie:
copying MobileNet-V2's image to such an address takes 0.25 of its 6.1 ms."""

ENTRY = "treadle_run"
"""The function of a library that runs its program."""

Array = npt.NDArray[Any]


def aligned_empty(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """An uninitialised C-contiguous array whose first byte lies at a multiple of ALIGNMENT."""
    element = np.dtype(dtype)
    storage = np.empty(prod(shape) * element.itemsize + ALIGNMENT, np.uint8)
    return np.ndarray(shape, element, storage, -address(storage) % ALIGNMENT)


def _aligned_zeros(spec: TensorSpec) -> Array:
    """An aligned array of zeros, whose pages are not there before they are written."""
    storage = np.zeros(spec.num_bytes + ALIGNMENT, np.uint8)
    return np.ndarray(spec.shape, spec.dtype, storage, -address(storage) % ALIGNMENT)


def address(array: Array) -> int:
    """That of the first byte; `array.ctypes.data` takes several times as long."""
    return array.__array_interface__["data"][0]


def aligned(array: Array) -> Array:
    """`array` itself if it is C-contiguous and aligned, else a copy that is."""
    if array.flags.c_contiguous and address(array) % ALIGNMENT == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


class CpuProgram:
    """A shared library's `treadle_run` with its constants, its arena and its thread pool.

    library:     the file, or what was loaded; exports the entry and the pool's functions (see runtime/pool.h)
    inputs:      what run() takes, in the order of the entry's `inputs`; of dense ones the shape may be smaller
    outputs:     what run() returns, in the order of the entry's `outputs`; of dense ones a smaller shape may be asked
    constants:   in the order of the entry's `constants`; memory-mapped arrays stay mapped if aligned
    arena_bytes: scratch memory, allocated once
    threads:     how many run it, the calling thread included; default: the variable TREADLE_NUM_THREADS. Or the pool of
                 threads that it shares
    entry:       the name of the program's function, in a library that holds several
    states:      what is kept between runs: run() neither takes nor returns it

    Calls of run() from several threads take turns. close(), leaving a `with`, collection or the interpreter's end ends
    its own threads, after a run that is under way, and not those of a pool that it was given. A forked child has
    threads of its own from its first run on.
    """

    def __init__(
        self,
        library: Path | ctypes.CDLL,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        constants: Sequence[Array] = (),
        arena_bytes: int = 0,
        threads: int | ThreadPool | None = None,
        entry: str = ENTRY,
        states: Sequence[State] = (),
    ):
        self.inputs, self.outputs = given_of(inputs, states), made_of(outputs, states)
        self._states = StateMemory(states, inputs, _aligned_zeros)
        self._owns_pool = not isinstance(threads, ThreadPool)
        self._pool = threads if isinstance(threads, ThreadPool) else ThreadPool(threads)
        self._constants = [aligned(array) for array in constants]
        self._constant_pointers = _pointers(self._constants)
        self._arena = aligned_empty((max(arena_bytes, ALIGNMENT),), np.uint8)
        self._arena_address = address(self._arena)
        self._spare: dict[int, Array] = {}
        self._closed = False
        self._recorder: Recorder | None = None
        self._library, self._entry, self._native = _loaded(library, self._pool, entry)

    @property
    def threads(self) -> int:
        """How many threads run it, the calling one included."""
        return self._pool.threads

    def run(self, inputs: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None = None) -> list[Array]:
        """The model's outputs for `inputs`, freshly allocated.

        shapes: of the outputs; without, and where no smaller one is possible, they are those of `outputs`. Extents
            among the inputs have to say the same as the shapes of dense inputs and outputs: kernels go by them.

        Raises TreadleError on a wrong number of inputs, shape or element type, and after close() of the program or of
        its pool.
        """
        buffers = self._checked(inputs)
        wanted = shapes or [spec.shape for spec in self.outputs]
        results = [self._result(position, shape) for position, shape in enumerate(wanted)]
        self._native.calls.call(lambda: self._run(buffers, results))
        return results

    def _run(self, buffers: Sequence[Array], results: Sequence[Array]) -> None:
        """The caller has the lock."""
        pool = self._pool_address()
        if self._recorder is None:
            self._call(pool, buffers, results)
        else:
            call = partial(self._call, pool, buffers, results)
            self._recorder.record(partial(self._native.trace, pool), call)
        self._states.advance()

    def clear_states(self) -> None:
        """Sets all states to 0, after a run that is under way."""
        self._native.calls.call(self._states.clear)

    def recycle(self, position: int, array: Array) -> None:
        """Takes an output of a run that nobody will read again: a later one is stored there, and no new pages are."""
        self._spare[position] = array

    def _result(self, position: int, shape: tuple[int, ...]) -> Array:
        spec = self.outputs[position]
        if spec.dense:
            return aligned_empty(shape, spec.dtype)
        spare = self._spare.pop(position, None)
        return aligned_empty(spec.shape, spec.dtype) if spare is None else spare

    def launch_seconds(self, inputs: Sequence[Array], launches: int) -> list[float]:
        """How many seconds each launch of one run takes, the first `launches` of them, in order; its outputs are
        dropped.

        Raises what run() raises, and TreadleError for a library of before there was `treadle_pool_record`.
        """
        record = self._native.record
        if record is None:
            message, accepted = "the library cannot time its kernels", "the model compiled again, or with rebuild=True"
            raise TreadleError(message, "CpuProgram.launch_seconds", accepted)
        buffers = self._checked(inputs)
        results = [aligned_empty(spec.shape, spec.dtype) for spec in self.outputs]
        seconds = (ctypes.c_double * launches)()

        def timed() -> None:
            pool = self._pool_address()
            try:
                record(pool, seconds, launches)
                self._call(pool, buffers, results)
            finally:
                record(pool, None, 0)

        self._native.calls.call(timed)
        return list(seconds)

    def trace(self, recorder: Recorder | None) -> None:
        """From the next run on, its launches are recorded, or with None no more; after a run that is under way.

        TreadleError where the library that started the threads is of before there was `treadle_pool_trace`.
        """
        if recorder is not None and self._native.trace is None:
            message, accepted = "the library cannot trace its kernels", "the model compiled again, or with rebuild=True"
            raise TreadleError(message, "CpuProgram.trace", accepted)
        self._native.calls.call(lambda: setattr(self, "_recorder", recorder))

    def kernel_names(self, names: Iterable[str]) -> dict[int | str, str]:
        """Those of these functions that the library has, by their addresses, which a recorder has of kernels."""
        found: dict[int | str, str] = {}
        for name in names:
            function = getattr(self._library, name, None)
            if function is not None:
                found[ctypes.cast(function, ctypes.c_void_p).value or 0] = name
        return found

    def _pool_address(self) -> int:
        """That of the pool; the caller has the lock."""
        if self._closed:
            raise TreadleError("run() after close()", "CpuProgram", "an open program")
        return self._native.open_address()

    def _call(self, pool: int, inputs: Sequence[Array], results: Sequence[Array]) -> None:
        given, made = _pointers(self._states.inputs(inputs)), _pointers(self._states.outputs(results))
        self._entry(pool, given, made, self._constant_pointers, self._arena_address)

    def close(self) -> None:
        """Frees the constants and the arena, and ends threads that are its own; a second call does nothing."""
        self._native.calls.call(self._free)
        if self._owns_pool:
            self._pool.close()

    def _free(self) -> None:
        """Frees the constants and the arena; the caller has the lock."""
        self._closed = True
        self._constants = []
        self._spare.clear()
        self._constant_pointers = _pointers([])
        self._arena = aligned_empty((ALIGNMENT,), np.uint8)
        self._arena_address = address(self._arena)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, inputs: Sequence[Array]) -> list[Array]:
        if len(inputs) != len(self.inputs):
            message = f"{len(inputs)} inputs given, {len(self.inputs)} needed"
            raise TreadleError(message, "CpuProgram.run", "; ".join(map(str, self.inputs)) or "no inputs")
        for array, spec in zip(inputs, self.inputs, strict=True):
            if not spec.takes(array.shape) or array.dtype != spec.dtype:
                given = f"{array.dtype}{list(array.shape)} given"
                raise TreadleError(given, f"input {spec.name!r}", str(spec))
        return [array if array.flags.c_contiguous and array.flags.aligned else aligned(array) for array in inputs]


def _pointers(arrays: Sequence[Array]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(len(arrays), 1))(*map(address, arrays))


def _loaded(library: Path | ctypes.CDLL, pool: ThreadPool, symbol: str) -> tuple[ctypes.CDLL, Any, NativePool]:
    """The library, the entry with its C types, and the threads that it runs on."""
    try:
        loaded = library if isinstance(library, ctypes.CDLL) else ctypes.CDLL(str(library))
        entry, native = loaded[symbol], pool.opened(loaded)
    except (OSError, AttributeError) as error:
        accepted = "a library built by treadle.backends.c.compiler"
        raise TreadleError(f"cannot load: {error}", library, accepted) from error
    pointers = ctypes.POINTER(ctypes.c_void_p)
    entry.argtypes = [ctypes.c_void_p, pointers, pointers, pointers, ctypes.c_void_p]
    entry.restype = None
    return loaded, entry, native
