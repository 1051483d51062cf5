"""Atomic creation and replacement of files and folders, with concurrent readers and writers.

Until it is complete, the new folder is inside a scratch folder next to its final path. A process that is killed leaves
its scratch folder, whose lock is then free; the next one that writes there removes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

from treadle.errors import TreadleError
from treadle.folder_lock import FolderLock, hold, take

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


__all__ = ["check_replaceable", "publish", "remove_unused", "scratch_folder", "sweep"]
