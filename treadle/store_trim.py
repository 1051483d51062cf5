"""Eviction from the store when it exceeds its limit: the least recently used entries go first.

| what                                  | why it may go                                                           |
|---------------------------------------|-------------------------------------------------------------------------|
| an entry                              | the store has more bytes than its limit                                 |
| ... but not: a folder that is read    | its reader shares its lock                                              |
| ... but not: what was used since the  | the process may be about to read it                                     |
| oldest process that is writing began  |                                                                         |
| ... but not: what this process used   | clocks of machines differ, and are set back                             |
| since it began to write               |                                                                         |
| a scratch folder whose lock is free   | the process that made it is gone                                        |
| a discarded folder whose lock is free | its last reader is gone                                                 |

A file with several names (hard links), such as a constant of several models, counts once, and is freed with its last
one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.folder_lock import take
from treadle.private_files import make_private_folder
from treadle.publishing import remove_unused, sweep

SCRATCH = "scratch"
DISCARDED = "discarded"

_TRIMMED_TO = 0.9
"""The fraction of its limit to which a store is trimmed, so that not every write trims it again."""


@dataclass(frozen=True)
class _Entry:
    path: Path
    used: int
    """When, in nanoseconds since 1970."""
    files: dict[tuple[int, int], int]
    """Bytes of each of its files, by device and inode."""


def trim(root: Path, kinds: Sequence[str], limit: int, held: Collection[Path] = ()) -> int:
    """Removes entries, none of `held`, until the store has at most nine tenths of `limit`, if it has more than `limit`
    bytes.

    Returns the bytes that are left.
    """
    entries = sorted((entry for kind in kinds for entry in _entries(root / kind)), key=lambda entry: entry.used)
    names = Counter(file for entry in entries for file in entry.files)
    left = sum({file: size for entry in entries for file, size in entry.files.items()}.values())
    if left <= limit:
        return left
    since = _oldest_writer(root)
    for entry in entries:
        if left <= limit * _TRIMMED_TO or entry.used >= since:
            break
        if entry.path in held or not _remove(root, entry.path):
            continue
        names.subtract(entry.files.keys())
        left -= sum(size for file, size in entry.files.items() if names[file] == 0)
    return left


def clear(root: Path, kinds: Sequence[str]) -> list[OSError]:
    """Removes every entry that nobody reads, and what dead processes left; an error for each that cannot be removed."""
    sweep_store(root)
    since, failed = _oldest_writer(root), list[OSError]()
    for entry in (entry for kind in kinds for entry in _entries(root / kind)):
        try:
            if entry.used < since and not (entry.path.is_dir() and _is_read(entry.path)):
                _put_away(root, entry.path)
        except OSError as error:
            failed.append(error)
    return failed


def kind_bytes(root: Path, kind: str) -> tuple[int, int]:
    """How many entries there are of a kind, and the bytes of their files."""
    entries = list(_entries(root / kind))
    return len(entries), sum({file: size for entry in entries for file, size in entry.files.items()}.values())


def sweep_store(root: Path) -> None:
    """Removes what dead processes left, and folders that were discarded while they were read."""
    sweep(root / SCRATCH, "")
    sweep(root / DISCARDED, "")


def discard(root: Path, path: Path) -> None:
    """Renames an entry away, and removes it; a folder that is being read is removed in a later sweep."""
    with contextlib.suppress(OSError):
        _put_away(root, path)


def _put_away(root: Path, path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        path.unlink()
        return
    make_private_folder(root / DISCARDED)
    aside = Path(tempfile.mkdtemp(dir=root / DISCARDED))
    try:
        os.rename(path, aside)
    finally:
        remove_unused(aside)


def directory_bytes(path: Path) -> int:
    """The bytes of a file, or of the files of a folder."""
    return sum(_files(path).values())


def _remove(root: Path, path: Path) -> bool:
    """Removes an entry unless it is a folder that is being read; whether it did."""
    if not path.is_dir():
        discard(root, path)
        return not path.exists()
    with contextlib.suppress(OSError):
        if _is_read(path):
            return False
    discard(root, path)
    return not path.exists()


def _is_read(folder: Path) -> bool:
    """Whether anyone has the folder's lock."""
    lock = take(folder)
    if lock is not None:
        lock.release()
    return lock is None


def _oldest_writer(root: Path) -> int:
    """When the oldest process that is writing began, in nanoseconds since 1970; scratch folders are named after it."""
    starts = [path.name.partition("-")[0] for path in _children(root / SCRATCH)]
    return min((int(start) for start in starts if start.isdigit()), default=1 << 63)


def _entries(folder: Path) -> Iterator[_Entry]:
    """The entries of a kind. Files of another naming scheme, as of an earlier version, are entries, too."""
    for child in _children(folder):
        is_shard = len(child.name) == 2 and child.is_dir()
        for path in _children(child) if is_shard else [child]:
            with contextlib.suppress(OSError):
                yield _Entry(path, path.lstat().st_mtime_ns, _files(path))


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _files(path: Path) -> dict[tuple[int, int], int]:
    paths = [Path(folder) / name for folder, _, names in os.walk(path) for name in names] if path.is_dir() else [path]
    found: dict[tuple[int, int], int] = {}
    for each in paths:
        with contextlib.suppress(OSError):
            status = each.lstat()
            found[status.st_dev, status.st_ino] = status.st_size
    return found


__all__ = ["DISCARDED", "SCRATCH", "clear", "directory_bytes", "discard", "kind_bytes", "sweep_store", "trim"]
