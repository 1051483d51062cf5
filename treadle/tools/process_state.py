"""What a tool changes of its process and puts back, so that it can run inside of another program."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from xdsl.ir import Attribute
from xdsl.utils.diagnostic import Diagnostic

_one_run = threading.RLock()


@contextmanager
def xdsl_switches_restored() -> Generator[None]:
    """Puts back what xDSL's driver switches for the whole process, and never back.

    `--disable-verify` replaces the method that verifies attributes when they are made, `--syntax-highlight` colours
    diagnostics. Runs take turns: one that overlapped another could otherwise restore what the other had switched.
    """
    with _one_run:
        verification, colored = Attribute.__post_init__, Diagnostic.colored
        try:
            yield
        finally:
            Attribute.__post_init__, Diagnostic.colored = verification, colored
