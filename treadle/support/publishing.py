"""Atomic creation and replacement of files and folders, with concurrent readers and writers.

Until it is complete, the new folder is inside a scratch folder next to its final path. A process that is killed
leaves its scratch folder, whose lock is then free; the next one that writes there removes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Generator
from pathlib import Path

from treadle.errors import TreadleError

# Locks on folders, which show what other processes use. A lock ends with its process, even if that is killed.
#
# A reader has a shared lock of the folder that it reads; whoever makes or removes a folder has an exclusive one. Locks
# are advisory (`flock` of the folder itself, no file is written) and follow a folder that is renamed. Some file
# systems, such as NFS, have none for folders: there, a folder that was not changed or used for a day counts as unused.

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


_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_ATTEMPTS = 1000
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@contextlib.contextmanager
def scratch_folder(parent: Path, prefix: str) -> Generator[Path]:
    """A new folder in `parent` that is removed afterwards; `sweep(parent, prefix)` skips it. OSError as writing."""
    parent.mkdir(parents=True, exist_ok=True)
    folder, lock = _locked_folder(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def sweep(parent: Path, prefix: str) -> None:
    """Removes what dead processes left in `parent`: the folders of that prefix whose lock is free."""
    with contextlib.suppress(OSError):
        for folder in parent.iterdir():
            if folder.name.startswith(prefix):
                remove_unused(folder)


def remove_unused(folder: Path) -> bool:
    """Removes a folder unless someone has its lock; whether it no longer exists."""
    try:
        lock = take(folder)
    except OSError:
        return not folder.exists()
    if lock is None:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()
    return True


def publish(final: Path, write: Callable[[Path], None], *, replace: Callable[[Path], bool]) -> None:
    """Creates the folder `final` with the files that `write(folder)` makes, in one step; nothing is left behind on
    failure.

    An existing folder is replaced if it is empty or `replace(final)` holds. Processes that share the lock of the
    replaced folder keep its files, which a later call removes. Of concurrent calls the last one wins. TreadleError if
    the folder may not be replaced, and if it cannot be written.
    """
    check_replaceable(final, replace)
    final = final.resolve()
    prefix = f".{final.name}.treadle-"
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        sweep(final.parent, prefix)
        with scratch_folder(final.parent, prefix) as scratch:
            made = scratch / "new"
            made.mkdir()
            write(made)
            for old in _put(made, final, scratch, lambda: check_replaceable(final, replace)):
                _remove_later(old, final.parent, prefix)
    except OSError as error:
        reason = error.strerror or error
        raise TreadleError(f"cannot write: {reason}", final, "a folder in a place that can be written") from error


def check_replaceable(final: Path, replace: Callable[[Path], bool]) -> None:
    """Raises TreadleError unless `publish` may create or replace `final`."""
    nearest = next(parent for parent in (final.absolute(), *final.absolute().parents) if parent.exists())
    if _is_file(nearest):
        raise TreadleError(f"{nearest} is a file", final, "a folder that is new, empty, or an earlier result")
    if not os.access(nearest if nearest != final.absolute() else nearest.parent, os.W_OK):
        raise TreadleError("cannot write: Permission denied", final, "a folder in a place that can be written")
    if _holds_files(final) and not replace(final):
        raise TreadleError("the folder holds other files", final, "a folder that is new, empty, or an earlier result")


def _is_file(path: Path) -> bool:
    """Whether there is anything but a folder, by one look: others may replace a folder meanwhile."""
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def _holds_files(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:  # none, or no longer
        return False


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, FolderLock]:
    """A new folder, and its lock; if a sweep removes it before it is locked, another one is made."""
    for _ in range(_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        with contextlib.suppress(FileNotFoundError):
            lock = hold(folder)
            if lock is not None:
                return folder, lock
    raise OSError(errno.EAGAIN, "scratch folders are removed as soon as they are made", str(parent))


def _put(made: Path, final: Path, scratch: Path, check: Callable[[], None]) -> list[Path]:
    """Renames a folder to `final`; gives the folders that had the name, which are in `scratch` then."""
    displaced: list[Path] = []
    for attempt in range(_ATTEMPTS):
        try:
            os.rename(made, final)
            return displaced
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
        check()
        with contextlib.suppress(FileNotFoundError):  # someone else is about to replace it
            if _exchange(made, final):
                return [*displaced, made]
            old = scratch / f"old{attempt}"  # without an exchange there is a moment at which nothing has the name
            os.rename(final, old)
            displaced.append(old)
    raise OSError(errno.EBUSY, "others replace the folder all the time", str(final))


def _exchange(a: Path, b: Path) -> bool:
    """Swaps two names in one step (Linux: renameat2); False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(b))


def _remove_later(folder: Path, parent: Path, prefix: str) -> None:
    """Removes a folder, now or in the sweep after its last reader."""
    if remove_unused(folder):
        return
    aside = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    os.rename(folder, aside)
