"""`breakpoint()` in what an IR test runs: tools whose streams are no terminal, inside of pytest's capturing."""

from __future__ import annotations

import pdb
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest


class TerminalDebugger(pdb.Pdb):
    """A debugger that talks to the terminal while the program's streams go elsewhere."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(stdin=sys.__stdin__, stdout=sys.__stdout__)
        self._capture: Any = config.pluginmanager.getplugin("capturemanager")

    def interaction(self, *arguments: Any, **options: Any) -> None:
        """Asks for commands until one lets the program go on."""
        streams = sys.stdin, sys.stdout, sys.stderr
        self._capture.suspend(in_=True)
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        try:
            super().interaction(*arguments, **options)
        finally:
            self._capture.resume()
            sys.stdin, sys.stdout, sys.stderr = streams


@contextmanager
def breakpoints_at_the_terminal(config: pytest.Config) -> Generator[None]:
    """`breakpoint()` stops at the caller, and asks at the terminal."""
    saved = sys.breakpointhook

    def hook(*_: object, **__: object) -> None:
        TerminalDebugger(config).set_trace(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    sys.breakpointhook = hook
    try:
        yield
    finally:
        sys.breakpointhook = saved
