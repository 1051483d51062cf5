"""Mutual exclusion of calls that share memory, which neither a fork nor a call inside a call can deadlock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from treadle.errors import TreadleError

T = TypeVar("T")

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


class CallLock:
    """A lock under which calls run one at a time: `lock.call(action)`.

    A thread that holds it and asks again (from a signal handler, say) gets a TreadleError that names `where`. After
    a fork the child has a lock of its own: one that another thread held would never be released there.

    It is free whenever `call` has ended, also where an interrupt ended it, at whatever instruction: a context manager
    in Python would keep it after an interrupt at the first instruction of `__exit__`.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._locks: dict[int, threading.RLock] = {}

    def call(self, action: Callable[[], T]) -> T:
        """What `action()` gives, once the lock is this thread's."""
        # It knows its thread: the call of a signal handler would wait for the call that it interrupts.
        lock = self._locks.get(_forks) or self._locks.setdefault(_forks, threading.RLock())
        if _is_owned(lock):
            raise TreadleError("called while a call of the same thread runs", self._where, "a call after it")
        try:
            with lock:
                return action()
        finally:
            if _is_owned(lock):  # the interrupt came between the end of `action` and the release
                lock.release()


def _is_owned(lock: threading.RLock) -> bool:
    """Whether this thread holds the lock, as `threading.Condition` asks it."""
    return lock._is_owned()  # pyright: ignore
