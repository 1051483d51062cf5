"""What a child that is forked here does, and how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.helpers.waiting import HANGS


def status_of_child(action: Callable[[], object]) -> int:
    """The exit status of a fork that does `action`: 0 if that returned, negative for a signal, as after `HANGS`."""
    child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(int(HANGS))
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
