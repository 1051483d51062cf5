"""The threads that run kernels on a CPU, of one model or of several."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from typing import Any, Self

from treadle.backends.call_lock import CallLock
from treadle.environment import load_environment
from treadle.errors import TreadleError

LAYOUT = "treadle_pool_layout"
"""The symbol by which libraries know each other's pools (see runtime/pool.h)."""


class NativePool:
    """Threads that a library started, for itself and for all with which it may share them.

    library: whose code the threads run
    calls:   the lock under which they are used
    address: of its `struct treadle_pool`; None once they have ended
    record:  its `treadle_pool_record`; None in libraries of before there was one
    """

    def __init__(self, library: ctypes.CDLL, calls: CallLock, address: int):
        self.library, self.calls = library, calls
        self.address: int | None = address
        self.record: Any = getattr(library, "treadle_pool_record", None)
        if self.record is not None:
            self.record.argtypes, self.record.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long], None

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


__all__ = ["LAYOUT", "NativePool", "ThreadPool"]
