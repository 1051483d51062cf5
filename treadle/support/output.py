"""What commands write: text without the control characters of names, and files that are replaced when complete."""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import TextIO, cast

from treadle.errors import TreadleError, TreadleWarning, printable

# What tools print: the control characters of names that a model brings are escaped, whoever prints them.
#
# A stranger's model may have an output called `"y\x1b[2J"`, which would clear the screen. While a tool runs, stdout and
# stderr therefore print such characters as `\x1b`; of escape sequences only colours come through, to a terminal.

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


STDOUT = "-"
"""The name that stands for stdout."""

_ACCEPTED = "a file in a folder that can be written"


@contextmanager
def output_stream(name: str | None) -> Generator[TextIO]:
    """A stream whose text goes to the file `name`; None and `-` are stdout.

    Links are followed. A regular file is replaced in one step when the block ends, and keeps its permissions; a block
    that fails leaves everything as it was. What is no regular file (a device, a FIFO, what stdout itself goes to) is
    opened first and written at the end. Raises TreadleError where `name` cannot be written.
    """
    if name is None or name == STDOUT:
        yield sys.stdout
        return
    text = StringIO()
    with _beside(name) if is_regular(name) else _in_place(name) as descriptor:
        yield text
        with _reported(name), open(descriptor, "w", encoding="utf-8", closefd=False) as stream:
            stream.write(text.getvalue())


def is_regular(name: str) -> bool:
    """Whether `name` is a regular file, or would be a new one; TreadleError if it can be no file."""
    if name == STDOUT:
        return False
    found = _status(name)
    return found is None or (stat.S_ISREG(found.st_mode) and _standard(found) is None)


def _status(name: str) -> os.stat_result | None:
    """The status of the file that `name` refers to, through links; None if there is none."""
    if not os.path.basename(name):
        raise TreadleError("cannot write: not the name of a file", repr(name), _ACCEPTED)
    with _reported(name), suppress(FileNotFoundError):
        found = os.stat(name)
        if stat.S_ISDIR(found.st_mode):
            raise TreadleError("cannot write: Is a directory", name, _ACCEPTED)
        return found
    return None


def _standard(found: os.stat_result) -> int | None:
    """stdout or stderr if it is that very file, as `/dev/stdout` is under `> file`."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), found):
                return descriptor
    return None


@contextmanager
def _in_place(name: str) -> Generator[int]:
    """A descriptor of the existing file, neither created nor truncated. It is closed after a failure, too, so that a
    reader of a FIFO sees its end.
    """
    with _reported(name):
        sys.stdout.flush()
        standard = _standard(os.stat(name))
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY
        descriptor = os.open(name, flags) if standard is None else os.dup(standard)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _beside(name: str) -> Generator[int]:
    """A descriptor of a new file, which replaces the final one at the end."""
    final = Path(os.path.realpath(name))
    scratch = final.with_name(f".treadle-{secrets.token_hex(8)}")
    existing = _status(name)
    if existing is not None and not os.access(final, os.W_OK):
        raise TreadleError("cannot write: Permission denied", name, _ACCEPTED)
    with _reported(name):
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
        with _reported(name):
            if existing is not None:
                _take_permissions(descriptor, existing)
            os.replace(scratch, final)
    finally:
        os.close(descriptor)
        scratch.unlink(missing_ok=True)


def _take_permissions(descriptor: int, existing: os.stat_result) -> None:
    """Sets owner and group if this user may; the mode last, since a change of owner clears bits of it."""
    with suppress(OSError):
        os.fchown(descriptor, existing.st_uid, existing.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(existing.st_mode))


@contextmanager
def _reported(name: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise TreadleError(f"cannot write: {error.strerror or error}", name, _ACCEPTED) from error
