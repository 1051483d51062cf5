"""The folders in which the store reads and writes: the one that was asked for, and where it will not do, another one.

| the folder that was asked for                        | entries are read from | and written to |
|------------------------------------------------------|-----------------------|----------------|
| is private, and can be written                       | it                    | it             |
| is private, and cannot be written                    | it, the other one     | the other one  |
| others could have written there; it cannot be made   | the other one         | the other one  |

Whatever is in a cache is run: in a folder that another user can change, that user's code would be.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.private_files import make_private_folder, may_write, why_folder_shared, why_shared


@dataclass(frozen=True)
class Roots:
    """What is read, in this order, and what is written; `why` says why the latter is not the folder asked for."""

    read: tuple[Path, ...]
    written: Path | None
    why: str | None = None


def choose_roots(asked: Path, other: Path, folders: Sequence[str]) -> Roots:
    """Decides for a store with these folders below its root. The folders are made if they are missing."""
    reason = _why_not_private(asked, folders)
    root = asked.resolve()
    if reason is None:
        unwritable = _why_not_writable(root, folders)
        if unwritable is None:
            return Roots((root,), root)
        spare = _spare(other, asked, folders)
        return Roots((root,) if spare is None else (root, spare), spare, unwritable)
    spare = _spare(other, asked, folders)
    return Roots(() if spare is None else (spare,), spare, reason)


def _spare(other: Path, asked: Path, folders: Sequence[str]) -> Path | None:
    """The other folder, if it can be used and is another one."""
    if other.resolve() == asked.resolve() or _why_not_private(other, folders) is not None:
        return None
    return other.resolve() if _why_not_writable(other.resolve(), folders) is None else None


def _why_not_private(root: Path, folders: Sequence[str]) -> str | None:
    """Why nothing is read there, if so: it cannot be made, or others could have written into it."""
    try:
        make_private_folder(root)
        reasons = [why_folder_shared(root), *map(why_shared, _existing(root.resolve(), folders))]
        return next((reason for reason in reasons if reason is not None), None)
    except OSError as error:
        return f"{error.filename or root}: {error.strerror or error}"


def _why_not_writable(root: Path, folders: Sequence[str]) -> str | None:
    if not os.access(root, os.W_OK | os.X_OK):
        return f"{root}: {os.strerror(errno.EACCES)}"
    closed = next((folder for folder in _existing(root, folders) if not may_write(folder.stat())), None)
    return None if closed is None else f"{closed}: {os.strerror(errno.EACCES)}"


def _existing(root: Path, folders: Sequence[str]) -> list[Path]:
    """The folders in which entries are made: those below the root, and the folders of two digits in them."""
    made = [root / name for name in folders if (root / name).is_dir()]
    return [*made, *(folder for parent in made for folder in _shards(parent))]


def _shards(parent: Path) -> list[Path]:
    with os.scandir(parent) as found:
        return [Path(entry.path) for entry in found if len(entry.name) == 2 and entry.is_dir()]


__all__ = ["Roots", "choose_roots"]
