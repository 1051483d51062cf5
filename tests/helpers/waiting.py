"""Waits on conditions, which no test bets on the speed of a machine for."""

from __future__ import annotations

import time
from collections.abc import Callable

HANGS = 300.0
"""Seconds after which what a test waits for is taken not to come. No limit on speed: only a test that fails waits so
long, and one that passes may take any part of it on a machine that is busy."""
_PAUSE = 0.01


def eventually(condition: Callable[[], object], seconds: float = HANGS) -> bool:
    """Whether a condition comes true; returns as soon as it has."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE)
    return True
