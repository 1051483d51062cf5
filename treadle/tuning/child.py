"""A child process that makes calls, one at a time: what crashes or hangs there ends the call and nothing else.

The child ends with its parent, even with one that is killed, and what it started ends with it, such as a compiler: it
leads a process group of its own. It is started by the interpreter's command, not by `multiprocessing`, whose children
may have none of their own: workers of clusters are such children.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from socket import socketpair
from threading import Thread
from typing import Any, TypeVar

from treadle.environment import single_threaded

T = TypeVar("T")
Call = Callable[[], object]

_LAST_WORDS = 1000
"""Bytes of what a child wrote to stderr in which its last line is looked for."""


class CallEndedError(Exception):
    """A call that took too long, or that ended its process; the text says which."""


@dataclass(frozen=True)
class _Outcome:
    value: Any = None
    error: Exception | None = None


class Child:
    """Makes calls in another process, which is started at the first one and again after each that ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._words: int | None = None

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """What `function()` returns or raises there; function and result are pickled.

        CallEndedError if it takes more than `seconds`, the start of the process not included, or ends the process.
        """
        pipe = self._pipe if self._pipe is not None else self._start()
        try:
            pipe.send(function)
            in_time = pipe.poll(seconds)
            outcome = pipe.recv() if in_time else None
        except (EOFError, OSError):
            raise CallEndedError(f"it ended the process that ran it ({self._end()})") from None
        except BaseException:  # an interrupted call leaves an answer that is nobody's
            self.close()
            raise
        if outcome is None:
            self.close()
            raise CallEndedError(f"it did not end within {seconds:g} seconds")
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def kill(self) -> None:
        """Ends the process; a call that another thread waits for fails."""
        if self._process is not None:
            _kill_group(self._process.pid)

    def close(self) -> None:
        """Ends the process. While another thread waits for a call, use `kill`."""
        if self._process is None:
            return
        if self._process.returncode is None:
            _kill_group(self._process.pid)
            self._process.wait()
        if self._pipe is not None:
            self._pipe.close()
        if self._words is not None:
            os.close(self._words)
        self._process = self._pipe = self._words = None

    def _start(self) -> Connection[Any, Any]:
        end, theirs = socketpair()
        ours: Connection[Any, Any] = Connection(end.detach())
        number = theirs.fileno()
        code = f"import sys; sys.path[:] = {sys.path!r}; from treadle.tuning.child import serve; serve({number})"
        words = os.memfd_create("stderr")
        with theirs:
            command = [sys.executable, "-c", code]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=words,
                pass_fds=[number],
                process_group=0,
                env=single_threaded(),
            )
        self._pipe, self._words = ours, words
        try:
            ours.recv()
        except EOFError:
            raise CallEndedError(f"the process cannot start ({self._end()})") from None
        return ours

    def _end(self) -> str:
        """Removes what a dead process left; its signal or status, and its last line."""
        assert self._process is not None
        assert self._words is not None
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(self._process.pid)
        status = self._process.wait()
        how = _signal_name(-status) if status < 0 else f"exit status {status}"
        size = os.fstat(self._words).st_size
        lines = os.pread(self._words, _LAST_WORDS, max(0, size - _LAST_WORDS)).decode(errors="replace").split("\n")
        self.close()
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {said}" if said else how


def serve(descriptor: int) -> None:
    """The child's side: makes the calls that come, until the parent has closed its end or is dead."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair, which then ends this process
    pipe: Connection[Any, Any] = Connection(descriptor)
    calls: SimpleQueue[Call] = SimpleQueue()
    pipe.send(None)
    Thread(target=_receive, args=(pipe, calls), daemon=True).start()
    while True:
        pipe.send(_outcome(calls.get()))


def _receive(pipe: Connection[Any, Any], calls: SimpleQueue[Call]) -> None:
    """Takes calls while one is made, so that the end of the parent ends even one that hangs."""
    while True:
        try:
            calls.put(pipe.recv())
        except (EOFError, ConnectionResetError):
            _kill_group(os.getpid())
            os._exit(0)
        except Exception as error:  # the call cannot be read: its function is not importable here
            calls.put(_Raise(error))


@dataclass(frozen=True)
class _Raise:
    error: Exception

    def __call__(self) -> object:
        raise self.error


def _outcome(call: Call) -> _Outcome:
    try:
        return _Outcome(call())
    except Exception as error:
        return _Outcome(error=error)


def _kill_group(leader: int) -> None:
    """Ends a child and what it started. One that has ended leads its group until it is waited for: the number is its
    own."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


__all__ = ["CallEndedError", "Child", "serve"]
