"""Locks on folders, which show what other processes use. A lock ends with its process, even if that is killed.

A reader has a shared lock of the folder that it reads; whoever makes or removes a folder has an exclusive one. Locks
are advisory (`flock` of the folder itself, no file is written) and follow a folder that is renamed. Some file systems,
such as NFS, have none for folders: there, a folder that was not changed or used for a day counts as unused.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from pathlib import Path

_DAY = 24 * 60 * 60


class FolderLock:
    """A lock that is kept until `release`, or until the object is collected. `descriptor` is the open folder."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.release = weakref.finalize(self, os.close, descriptor)


def share(folder: Path) -> FolderLock | None:
    """A shared lock of the folder; None if someone has the exclusive one, to remove it. OSError if there is none."""
    return _lock(folder, fcntl.LOCK_SH, unlocked=True)


def hold(folder: Path) -> FolderLock | None:
    """The exclusive lock of a folder that was just made; None if someone is about to remove it. OSError as `share`."""
    return _lock(folder, fcntl.LOCK_EX, unlocked=True)


def take(folder: Path) -> FolderLock | None:
    """The exclusive lock of a folder that is to be removed; None if anyone else has a lock. OSError as `share`."""
    return _lock(folder, fcntl.LOCK_EX, unlocked=False)


def _lock(folder: Path, kind: int, *, unlocked: bool) -> FolderLock | None:
    """`unlocked`: whether a folder that was in use lately will do where the file system has no locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    lock = FolderLock(descriptor)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        is_free = _is_at(folder, descriptor)
    except BlockingIOError:
        is_free = False
    except OSError:
        is_free = unlocked or time.time() - os.fstat(descriptor).st_mtime > _DAY
    if is_free:
        return lock
    lock.release()
    return None


def _is_at(folder: Path, descriptor: int) -> bool:
    """Whether the folder still has its name: it may have been removed while the lock was waited for."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(descriptor))
    except OSError:
        return False


__all__ = ["FolderLock", "hold", "share", "take"]
