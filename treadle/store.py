"""The store of everything that is cached: compiled objects, cubins, emulator builds, constants, whole models.

An entry is a file or a folder whose name has a digest of what it was made from (the key) and of its contents, at
`<root>/<kind>/<first two digits>/<key>-<digest><suffix>`. It is created atomically and never changes: other contents
have another name. So readers need no lock against writers, and a damaged entry is recognised by its name. When the
store exceeds its limit, the least recently used entries are evicted (`treadle/store_trim.py`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Generator
from functools import lru_cache
from pathlib import Path
from threading import Lock

from treadle.environment import Environment
from treadle.errors import TreadleError
from treadle.publishing import scratch_folder
from treadle.store_trim import SCRATCH, directory_bytes, discard, sweep_store, trim

KINDS = ("objects", "libraries", "cubins", "emulator", "blobs", "models")

_DIGITS = 32
"""Digits of a sha256 in names: enough against accidental collisions; nobody else writes into a user's cache."""
_RESCAN_SECONDS = 300


class Store:
    """The entries below `root`, which is created at the first one; `limit` is in bytes."""

    def __init__(self, root: Path, limit: int):
        self.root = root
        self.limit = limit
        self._lock = Lock()
        self._bytes: int | None = None
        self._scanned = 0.0

    def fetch(self, kind: str, key: str, suffix: str, produce: Callable[[Path], None]) -> Path:
        """The file of that key, made by `produce(path)` unless an undamaged one is there.

        `produce` may write more files beside the path; they are dropped. TreadleError if the store cannot be written,
        and what `produce` raises.
        """
        found = self.find(kind, key, suffix)
        if found is not None:
            return found
        with self.writing() as scratch:
            made = scratch / f"file{suffix}"
            produce(made)
            name = f"{key}-{_file_digest(made)[:_DIGITS]}{suffix}"
            return self._add(made, kind, name)

    def find(self, kind: str, key: str, suffix: str) -> Path | None:
        """The undamaged file of that key; None if there is none. It counts as used."""
        for path in self._entries(kind, key):
            if path.suffix != suffix:
                continue
            if _is_sound(path):
                _touch(path)
                return path
            discard(self.root, path)
        return None

    def folders(self, kind: str, key: str) -> list[Path]:
        """The folders of that key; the caller checks that they are undamaged."""
        return self._entries(kind, key)

    def add_folder(self, kind: str, key: str, write: Callable[[Path], str]) -> Path:
        """Adds the folder that `write(path)` fills; it returns a digest of the contents. TreadleError as `fetch`."""
        with self.writing() as scratch:
            made = scratch / "new"
            made.mkdir()
            return self._add(made, kind, f"{key}-{write(made)[:_DIGITS]}")

    def add_content(self, kind: str, digest: str, data: memoryview) -> Path:
        """Adds bytes under their own sha256 (hex), and replaces a damaged file of that name. TreadleError as
        `fetch`."""
        with self.writing() as scratch:
            made = scratch / "file"
            made.write_bytes(data)
            return self._add(made, kind, digest)

    def content_path(self, kind: str, digest: str) -> Path:
        """The path of the file with the bytes of that sha256 (hex), whether it exists or not."""
        return self.root / kind / digest[:2] / digest

    def use(self, path: Path) -> None:
        """Notes that an entry was used just now."""
        _touch(path)

    def discard(self, path: Path) -> None:
        """Removes an entry; a folder that someone reads is removed when they are done."""
        discard(self.root, path)

    @contextlib.contextmanager
    def writing(self) -> Generator[Path]:
        """A scratch folder; while it is there, nothing that was used since is evicted. TreadleError as `fetch`."""
        try:
            with scratch_folder(self.root / SCRATCH, f"{time.time_ns()}-") as folder:
                yield folder
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            accepted = "TREADLE_CACHE_DIR naming a writable folder"
            raise TreadleError(
                f"cannot write the cache: {error.strerror or error}", self.root,
                f"{accepted} with more room, or a smaller TREADLE_CACHE_LIMIT" if full else accepted,
            ) from error  # fmt: skip

    def clear(self) -> None:
        """Removes every entry that is not in use, and scratch folders of dead processes."""
        sweep_store(self.root)
        trim(self.root, KINDS, 0)
        self._bytes = None

    def _entries(self, kind: str, key: str) -> list[Path]:
        folder = self.root / kind / key[:2]
        prefix = f"{key}-"
        try:
            return sorted(path for path in folder.iterdir() if path.name.startswith(prefix))
        except OSError:
            return []

    def _add(self, made: Path, kind: str, name: str) -> Path:
        path = self.root / kind / name[:2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size = directory_bytes(made)
        _move(made, path)
        self._count(size)
        return path

    def _count(self, size: int) -> None:
        """Trims the store if it may exceed its limit, by an entry of that size or by those of other processes."""
        with self._lock:
            stale = self._bytes is None or time.monotonic() > self._scanned + _RESCAN_SECONDS
            self._bytes = size + (self._bytes or 0)
            if not stale and self._bytes <= self.limit:
                return
            self._scanned = time.monotonic()
            sweep_store(self.root)
            self._bytes = trim(self.root, KINDS, self.limit)


def digest(*parts: str | bytes) -> str:
    """The sha256 (hex) of the parts; each is preceded by its length, so no two different lists agree."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(f"{len(data)}:".encode())
        hasher.update(data)
    return hasher.hexdigest()


def store_of(environment: Environment) -> Store:
    """The store of a cache directory and its limit; the same object each time, since it counts what it writes."""
    return _store_at(environment.cache_dir, environment.cache_limit)


@lru_cache(maxsize=32)
def _store_at(root: Path, limit: int) -> Store:
    return Store(root, limit)


# In a forked child: a thread of the parent that held a store's lock does not exist there.
os.register_at_fork(after_in_child=_store_at.cache_clear)


def _move(made: Path, path: Path) -> None:
    """Renames a new entry. An equal folder that exists already stays; an equal file is replaced."""
    try:
        os.replace(made, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(made, ignore_errors=True)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_sound(path: Path) -> bool:
    expected = path.stem.rpartition("-")[2]
    try:
        return len(expected) == _DIGITS and _file_digest(path).startswith(expected)
    except OSError:
        return False


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(path)


__all__ = ["KINDS", "Store", "digest", "store_of"]
