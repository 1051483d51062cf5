"""An executor of child processes: a call that crashes, or takes too long, ends nothing but itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from threading import Lock
from types import TracebackType
from typing import Any, TypeVar

from treadle.tuning.child import CallEndedError, Child

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


__all__ = ["ChildPool"]
