"""The processes that build, and on clusters measure: any executor whose workers are machines of one kind.

What one call raises is that candidate's fault. A worker of another kind or version, a full disk, or the loss of the
executor ends the search. Every call says where it is meant for, since an executor does not say which worker takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from queue import SimpleQueue
from threading import Lock
from types import TracebackType
from typing import Any, TypeVar

from treadle.artifact.cache import kernel_fingerprint, source_fingerprint
from treadle.backends.c.compiler import find_toolchain
from treadle.backends.cuda.compiler import nvrtc_is_installed, nvrtc_version
from treadle.environment import load_environment
from treadle.errors import TreadleError
from treadle.support.extensions import Additions, add, additions
from treadle.target import Target
from treadle.target.host import hardware_of, host_target
from treadle.tuning.child import CallEndedError, Child

# An executor of child processes: a call that crashes, or takes too long, ends nothing but itself.

T = TypeVar("T")


class ChildPool(Executor):
    """Makes calls in `workers` processes; each may take `seconds`.

    A call that ends its process, or does not end, fails with CallEndedError. `ProcessPoolExecutor` would fail all calls
    that wait, and would not run any more.
    """

    def __init__(self, workers: int, seconds: float):
        self._children = [Child() for _ in range(workers)]
        self._idle: SimpleQueue[Child] = SimpleQueue()
        for child in self._children:
            self._idle.put(child)
        self._threads = ThreadPoolExecutor(workers, "treadle-child")
        self._seconds = seconds
        self._lock = Lock()
        self._busy: set[Child] = set()
        self._ended: set[Child] = set()
        self._abandoned = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As of every executor; function, arguments and result are pickled."""
        return self._threads.submit(self._call, partial(fn, *args, **kwargs), self._abandoned)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes: after the calls that were submitted with `wait`, else at once."""
        self._threads.shutdown(wait=False, cancel_futures=cancel_futures or not wait)
        if not wait:
            for child in self._children:
                child.kill()
        self._threads.shutdown(wait=True)
        for child in self._children:
            child.close()

    def abandon(self) -> None:
        """Ends the calls that were submitted, which fail; their processes are started again by later ones."""
        with self._lock:
            self._abandoned += 1
            self._ended |= self._busy
            for child in self._busy:
                child.kill()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Waits for calls only if nothing was raised: Ctrl-C ends them."""
        self.shutdown(wait=kind is None)
        return None

    def _call(self, function: Callable[[], T], abandoned: int) -> T:
        child = self._idle.get()
        with self._lock:
            is_wanted = abandoned == self._abandoned
            if is_wanted:
                self._busy.add(child)
        try:
            if not is_wanted:
                raise CallEndedError("it was abandoned")
            return child.call(function, self._seconds)
        finally:
            with self._lock:
                self._busy.discard(child)
                if child in self._ended:  # it may have answered just before
                    self._ended.discard(child)
                    child.close()
            self._idle.put(child)


S = TypeVar("S")


_OTHER_VERSION = "a worker has another version of treadle"
_SAME_COMMAND = "the same command, which goes on where this one ended"


@dataclass(frozen=True)
class Machine:
    """What times depend on: the processor, what compiles for it, and the sources that write the code.

    target_text: the target, as text, since that travels; kernels: of `kernel_fingerprint`
    """

    target_text: str
    hardware: str
    compiler: str
    sources: str
    kernels: str

    @cached_property
    def target(self) -> Target:
        """The processor."""
        return Target.parse(self.target_text)


def this_machine(target: Target | None = None) -> Machine:
    """The machine of this process, or a GPU, which need not be there, and what compiles for it here."""
    if target is not None and target.is_cuda:
        compiler = f"NVRTC {nvrtc_version()}" if nvrtc_is_installed() else "no NVRTC"
    else:
        target = host_target()
        compiler = find_toolchain(load_environment(), target).identity().splitlines()[0]
    return Machine(str(target), hardware_of(target), compiler, source_fingerprint(), kernel_fingerprint())


class OutOfTimeError(Exception):
    """Calls did not end in the time that there was for them."""


def endless() -> float:
    """Seconds that are left where nothing limits them."""
    return inf


@dataclass(frozen=True)
class Failed:
    """A call without a result, and why."""

    reason: str


@dataclass(frozen=True)
class Workers:
    """Makes calls with an executor. TreadleError if it takes or ends no more calls, if a worker is no such machine, and
    if a call raises one: functions raise TreadleError for what is wrong with the worker's machine.

    abandon: ends the calls that are being made
    """

    executor: Executor
    machine: Machine
    abandon: Callable[[], None] = lambda: None

    def call_all(
        self, function: Callable[[S], T], items: Sequence[S], left: Callable[[], float] = endless
    ) -> list[T | Failed]:
        """The result of a function for each item, in their order.

        left: seconds that remain; OutOfTimeError if they do not suffice, and the calls are abandoned
        """
        there = partial(_on, self.machine, additions(), function)
        futures: list[Future[T]] = []
        try:
            for item in items:
                futures.append(_submitted(self.executor, there, item))
            return [_result(future, left) for future in futures]
        except OutOfTimeError:
            _cancel(futures)
            self.abandon()
            raise
        finally:
            _cancel(futures)

    def call(self, function: Callable[[S], T], item: S) -> T:
        """The result of one call; raises what the call raises."""
        return _result_of_one(_submitted(self.executor, partial(_on, self.machine, additions(), function), item))


def workers_of(executor: Executor) -> Workers:
    """The workers of an executor that may be elsewhere: of the kind of machine that the first one asked is of.

    TreadleError if its sources differ from this process's.
    """
    machine = _result_of_one(_submitted(executor, _machine_there, additions()))
    if (machine.sources, machine.kernels) != (source_fingerprint(), kernel_fingerprint()):
        raise TreadleError(_OTHER_VERSION, machine.hardware, "the same sources everywhere")
    return Workers(executor, machine)


def reason_of(error: Exception) -> str:
    """Why a call has no result, in a line."""
    lines = str(error).strip().splitlines() or [""]
    return lines[0] if isinstance(error, CallEndedError) else f"{type(error).__name__}: {lines[0]}".removesuffix(": ")


def _machine_there(added: Additions) -> Machine:
    add(added)
    return this_machine()


def _on(meant: Machine, added: Additions, function: Callable[[S], T], item: S) -> T:
    """On the worker: the call, with what the program has added to Treadle, if this is the machine that it is meant
    for."""
    add(added)
    here = this_machine(meant.target)
    if here != meant:
        raise _unlike(here, meant)
    return function(item)


def _unlike(here: Machine, meant: Machine) -> TreadleError:
    """What tells a worker from those that a search is for."""
    if here.hardware != meant.hardware:
        message = f"a worker is a machine of another kind: {here.hardware}"
        return TreadleError(message, "tune", f"workers that are {meant.hardware}")
    if (here.sources, here.kernels) != (meant.sources, meant.kernels):
        return TreadleError(_OTHER_VERSION, here.hardware, "the same sources everywhere")
    if here.compiler != meant.compiler:
        return TreadleError(f"a worker has another compiler: {here.compiler}", here.hardware, meant.compiler)
    return TreadleError(f"a worker compiles for another target: {here.target_text}", here.hardware, meant.target_text)


def _submitted(executor: Executor, function: Callable[[S], T], item: S) -> Future[T]:
    try:
        return executor.submit(function, item)
    except RuntimeError as error:  # it was shut down, or is broken
        raise _lost(error) from error


def _cancel(futures: Sequence[Future[T]]) -> None:
    for future in futures:
        future.cancel()


def _result_of_one(future: Future[T], left: Callable[[], float] = endless) -> T:
    seconds = left()
    try:
        return future.result(None if seconds == inf else max(seconds, 0.0))
    except TimeoutError as error:
        if future.done():  # the call's own
            raise
        raise OutOfTimeError from error
    except (BrokenExecutor, CancelledError) as error:
        raise _lost(error) from error
    finally:
        future.cancel()


def _result(future: Future[T], left: Callable[[], float]) -> T | Failed:
    try:
        return _result_of_one(future, left)
    except (TreadleError, OutOfTimeError):
        raise
    except Exception as error:
        return Failed(reason_of(error))


def _lost(error: BaseException) -> TreadleError:
    return TreadleError(f"the workers are gone: {str(error) or type(error).__name__}", "tune", _SAME_COMMAND)
