"""Mutual exclusion of calls that share memory, which neither a fork nor a call inside a call can deadlock."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

from treadle.errors import TreadleError

_forks = 0


def forks() -> int:
    """The number of forks between the process that imported this module and the present one.

    It distinguishes a process from all its ancestors, whose process numbers may be reused.
    """
    return _forks


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class _Mutex:
    __slots__ = ("busy", "lock")

    def __init__(self) -> None:
        # Reentrant, so that a call from a signal handler is refused; it would wait for the call that it interrupts.
        self.lock = threading.RLock()
        self.busy = False


class CallLock:
    """A lock under which calls run one at a time: `with lock.turn(): ...`.

    A thread that holds it and asks again (from a signal handler, say) gets a TreadleError that names `where`. After
    a fork the child has a lock of its own: one that another thread held would never be released there.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._mutexes: dict[int, _Mutex] = {}

    @contextmanager
    def turn(self) -> Generator[None]:
        """Waits for the lock, and holds it during the `with` statement."""
        mutex = self._mutexes.setdefault(forks(), _Mutex())
        with mutex.lock:
            if mutex.busy:
                raise TreadleError("called while a call of the same thread runs", self._where, "a call after it")
            mutex.busy = True
            try:
                yield
            finally:
                mutex.busy = False
