"""Files to which lines are appended, and which hold whole lines whatever happens: a killed writer, a full disk."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType

from treadle.errors import TreadleError

_RESERVED = 1 << 16
"""Bytes: some hundred lines, more than are appended at once."""
_ACCEPTED = "a database that can be written, with room on its disk"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Room:
    """Some room on a folder's disk, kept by a file without a name: it is gone with its process, however that ends.

    TreadleError if there is not even that.
    """

    def __init__(self, folder: Path):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f".treadle-room-{secrets.token_hex(8)}"
            self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            path.unlink()
            _write(self._descriptor, os.urandom(_RESERVED))  # a file system may keep no room for zeros
        except OSError as error:
            raise _cannot_write(folder, error) from error

    def release(self) -> bool:
        """Gives the room to others; whether there was some."""
        if self._descriptor is None:
            return False
        os.close(self._descriptor)
        self._descriptor = None
        return True

    def __enter__(self) -> Room:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def append_lines(path: Path, text: str, room: Room | None = None) -> None:
    """Appends lines in one write, after cutting off what a killed writer left of a line.

    On a full disk the room that was kept takes them. Either way TreadleError says that it is full; without room, the
    file stays as it was.
    """
    assert text.endswith("\n")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b", buffering=0, opener=_regular) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _append(file.fileno(), text.encode(), room)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _regular(path: str, flags: int) -> int:
    """Opens a file that is none but a regular one, without waiting for a FIFO's other end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return descriptor


def _append(descriptor: int, data: bytes, room: Room | None) -> None:
    end = _whole_lines(descriptor)
    try:
        _write(descriptor, data)
        return
    except OSError as error:
        os.ftruncate(descriptor, end)
        if error.errno not in _FULL or room is None or not room.release():
            raise
        full = error
    try:
        _write(descriptor, data)
    except OSError:
        os.ftruncate(descriptor, end)
        raise
    raise full


def _write(descriptor: int, data: bytes) -> None:
    """Writes all of it, to the disk: some file systems find out only then that they are full."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


def _whole_lines(descriptor: int) -> int:
    """The length of the file's whole lines, to which it is cut."""
    size = os.fstat(descriptor).st_size
    end = os.pread(descriptor, size, 0).rfind(b"\n") + 1
    if end < size:
        os.ftruncate(descriptor, end)
    return end


def _cannot_write(path: Path, error: OSError) -> TreadleError:
    return TreadleError(f"cannot write: {error.strerror or error}", path, _ACCEPTED)


__all__ = ["Room", "append_lines"]
