"""What tools print: the control characters of names that a model brings are escaped, whoever prints them.

A stranger's model may have an output called `"y\\x1b[2J"`, which would clear the screen. While a tool runs, stdout and
stderr therefore print such characters as `\\x1b`; of escape sequences only colours come through, to a terminal.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO, cast

from treadle.errors import TreadleWarning, printable

_COLOURS = re.compile(r"(\x1b\[(?:[0-47;]|[349][0-7]|10[0-7]|[34]8;5;\d{1,3}|[34]8;2(?:;\d{1,3}){3})*m)")
"""Of text that is not invisible."""


class _Escaping:
    """A stream that escapes what is written to another one."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        if not self.stream.isatty():
            self.stream.write(printable(text))
            return len(text)
        parts = _COLOURS.split(text)  # every second one is a colour
        self.stream.write("".join(part if n % 2 else printable(part) for n, part in enumerate(parts)))
        return len(text)


def unescaped(stream: TextIO) -> TextIO:
    """The stream to which an escaping one writes: for those who move the cursor, and print nothing foreign."""
    return stream.stream if isinstance(stream, _Escaping) else stream


_lock = threading.Lock()
_users = 0
_before: tuple[TextIO, TextIO, Callable[..., None]] = sys.stdout, sys.stderr, warnings.showwarning


@contextmanager
def escaped_output() -> Generator[None]:
    """Escapes what is printed, and prints Treadle's warnings as a line, until the last tool of the process ends."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = sys.stdout, sys.stderr, warnings.showwarning
            sys.stdout, sys.stderr = map(_escaping, (sys.stdout, sys.stderr))
            warnings.showwarning = _show_warning
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                sys.stdout, sys.stderr, warnings.showwarning = _before


def _escaping(stream: TextIO) -> TextIO:
    return cast("TextIO", _Escaping(stream)) if stream else stream


def _show_warning(message: object, kind: type, *place: object) -> None:
    """Treadle's own warnings as a line, without the place in its code; others as usual."""
    if issubclass(kind, TreadleWarning):
        print(f"treadle: warning: {message}", file=sys.stderr)
    else:
        _before[2](message, kind, *place)


__all__ = ["escaped_output", "unescaped"]
