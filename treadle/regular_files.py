"""Reading files that others may have put there: a FIFO and a device are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from treadle.errors import TreadleError

MODEL_BYTES = 2**31 - 1
"""What a model's file may have: protobuf has no larger messages, and weights may lie in files beside it."""

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)


def open_regular(path: Path, most: int, accepted: str) -> BinaryIO:
    """Opens a regular file of at most some bytes, or what a link leads to, for reading.

    TreadleError that names the file for anything else, and where it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise TreadleError(f"cannot read: {error.strerror}", path, accepted) from error
    file = os.fdopen(descriptor, "rb", closefd=True) if _is_regular(descriptor) else None
    if file is None:
        kind = _kind(descriptor)
        os.close(descriptor)
        raise TreadleError(f"is {kind}, not a regular file", path, accepted)
    size = os.fstat(descriptor).st_size
    if size > most:
        file.close()
        raise TreadleError(f"has {size} bytes", path, f"{accepted}, of at most {most} bytes")
    return file


def read_regular(path: Path, most: int, accepted: str) -> bytes:
    """The bytes of a regular file; TreadleError as `open_regular` raises it."""
    with open_regular(path, most, accepted) as file:
        try:
            return file.read()
        except MemoryError:
            raise TreadleError("does not fit into memory", path, accepted) from None
        except OSError as error:
            raise TreadleError(f"cannot read: {error.strerror}", path, accepted) from error


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _kind(descriptor: int) -> str:
    mode = os.fstat(descriptor).st_mode
    return next((kind for test, kind in _KINDS if test(mode)), "a device")


__all__ = ["MODEL_BYTES", "open_regular", "read_regular"]
