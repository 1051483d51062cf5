"""The store of everything that is cached: compiled objects, cubins, emulator builds, constants, whole models.

An entry is a file or a folder whose name has a digest of what it was made from (the key) and of its contents, at
`<root>/<kind>/<first two digits>/<key>-<digest><suffix>`. It is created atomically and never changes: other contents
have another name. So readers need no lock against writers, and a damaged entry is recognised by its name. When the
store exceeds its limit, the least recently used entries are evicted (`treadle/artifact/store.py`).

Compiled code is run, so that entries are read only where no other user can have written them; new ones are private.
Where the folder that was asked for is not private, or cannot be written, another one is used
(`treadle/artifact/store.py`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

from treadle.environment import Environment, temporary_cache_dir
from treadle.errors import TreadleError, TreadleWarning
from treadle.support.files import (
    is_private_file,
    is_private_tree,
    make_private,
    make_private_folder,
    may_write,
    why_folder_shared,
    why_shared,
)
from treadle.support.publishing import remove_unused, scratch_folder, sweep, take

# The folders in which the store reads and writes: the one that was asked for, and where it will not do, another one.
#
# | the folder that was asked for                        | entries are read from | and written to |
# |------------------------------------------------------|-----------------------|----------------|
# | is private, and can be written                       | it                    | it             |
# | is private, and cannot be written                    | it, the other one     | the other one  |
# | others could have written there; it cannot be made   | the other one         | the other one  |
#
# Whatever is in a cache is run: in a folder that another user can change, that user's code would be.


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


# Eviction from the store when it exceeds its limit: the least recently used entries go first.
#
# | what                                  | why it may go                                                           |
# |---------------------------------------|-------------------------------------------------------------------------|
# | an entry                              | the store has more bytes than its limit                                 |
# | ... but not: a folder that is read    | its reader shares its lock                                              |
# | ... but not: what was used since the  | the process may be about to read it                                     |
# | oldest process that is writing began  |                                                                         |
# | ... but not: what this process used   | clocks of machines differ, and are set back                             |
# | since it began to write               |                                                                         |
# | a scratch folder whose lock is free   | the process that made it is gone                                        |
# | a discarded folder whose lock is free | its last reader is gone                                                 |
#
# A file with several names (hard links), such as a constant of several models, counts once, and is freed with its last
# one.

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


KINDS = ("objects", "libraries", "cubins", "emulator", "blobs", "models")

_DIGITS = 32
"""Digits of a sha256 in names: enough against accidental collisions; nobody else writes into a user's cache."""
_RESCAN_SECONDS = 300
_ACCEPTED = "TREADLE_CACHE_DIR naming a writable folder that no other user can change"


class StoreError(TreadleError):
    """The store cannot be written."""


class Store:
    """The entries below `root`, which is made if it is missing, or below `other` where that one cannot be used.

    `limit` is in bytes; by default `other` is in the folder of temporary files. That it is used is one TreadleWarning.
    """

    def __init__(self, root: Path, limit: int, other: Path | None = None):
        self.root = root
        self.limit = limit
        self._other = other
        self._lock = Lock()
        self._bytes: int | None = None
        self._scanned = 0.0
        self._roots: Roots | None = None
        self._warned = False
        self._writers = 0
        self._held: set[Path] = set()
        """What was made or used while anyone in this process is writing: that is not evicted, whatever clocks say."""

    @property
    def folders_in_use(self) -> Sequence[Path]:
        """The folders that are read, and written if possible."""
        return self._opened().read

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
            if is_private_file(path) and _is_sound(path):
                self.use(path)
                return path
            self.discard(path)
        return None

    def folders(self, kind: str, key: str) -> list[Path]:
        """The folders of that key; the caller checks that they are undamaged."""
        found = self._entries(kind, key)
        private = [path for path in found if is_private_tree(path)]
        for path in found:
            if path not in private:
                self.discard(path)
        return private

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
        """The path of the file with the bytes of that sha256 (hex): of a private one, else of one that may be made."""
        paths = [root / kind / digest[:2] / digest for root in (*self.folders_in_use, self.root)]
        return next((path for path in paths if is_private_file(path)), paths[0])

    def use(self, path: Path) -> None:
        """Notes that an entry was used just now."""
        self._hold(path)
        with contextlib.suppress(OSError):
            os.utime(path)

    def discard(self, path: Path) -> None:
        """Removes an entry; a folder that someone reads is removed when they are done."""
        discard(path.parents[2], path)

    @contextlib.contextmanager
    def writing(self) -> Generator[Path]:
        """A scratch folder; while it is there, nothing that was used since is evicted. TreadleError as `fetch`."""
        root = self._written()
        try:
            with self._holding(), scratch_folder(root / SCRATCH, f"{time.time_ns()}-") as folder:
                yield folder
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise StoreError(
                f"cannot write the cache: {error.strerror or error}", root,
                f"{_ACCEPTED} with more room, or a smaller TREADLE_CACHE_LIMIT" if full else _ACCEPTED,
            ) from error  # fmt: skip

    def clear(self) -> None:
        """Removes every entry that is not in use, and scratch folders of dead processes. TreadleError if entries are
        left that are not in use, as those of another user."""
        self._bytes = None
        failed = [error for root in self.every_folder() for error in clear(root, KINDS)]
        if failed:
            message = f"entries that cannot be removed: {len(failed)} ({failed[0].strerror})"
            raise StoreError(message, failed[0].filename, "the user whom they belong to")

    def every_folder(self) -> list[Path]:
        """The folder that was asked for, used or not, and the one that is used instead, if there is one."""
        return list(dict.fromkeys((self.root.resolve(), *self.folders_in_use)))

    def _opened(self) -> Roots:
        """The folders that are used, which are looked at once."""
        if self._roots is None:
            other = temporary_cache_dir() if self._other is None else self._other
            self._roots = choose_roots(self.root, other, (*KINDS, SCRATCH, DISCARDED))
            if self._roots.why is not None and self.root.resolve() not in self._roots.read:
                self._warn(self._roots)
        return self._roots

    def _written(self) -> Path:
        """The folder that is written; TreadleError if there is none."""
        roots = self._opened()
        if roots.written is None:
            raise StoreError(f"cannot write the cache: {roots.why}", self.root, _ACCEPTED)
        if roots.why is not None:
            self._warn(roots)
        make_private_folder(roots.written / SCRATCH)
        return roots.written

    def _warn(self, roots: Roots) -> None:
        if not self._warned and roots.written is not None:
            self._warned = True
            message = f"the cache {self.root} is not used, but {roots.written}: {roots.why}"
            warnings.warn(f"{message}; accepted: {_ACCEPTED}", TreadleWarning, stacklevel=2)

    @contextlib.contextmanager
    def _holding(self) -> Generator[None]:
        with self._lock:
            self._writers += 1
        try:
            yield
        finally:
            with self._lock:
                self._writers -= 1
                if self._writers == 0:
                    self._held.clear()

    def _hold(self, path: Path) -> None:
        with self._lock:
            if self._writers:
                self._held.add(path)

    def _entries(self, kind: str, key: str) -> list[Path]:
        """In each folder, by name."""
        prefix, found = f"{key}-", list[Path]()
        for root in self.folders_in_use:
            with contextlib.suppress(OSError):
                found += sorted(path for path in (root / kind / key[:2]).iterdir() if path.name.startswith(prefix))
        return found

    def _add(self, made: Path, kind: str, name: str) -> Path:
        root = self._written()
        path = root / kind / name[:2] / name
        make_private_folder(path.parent)
        make_private(made)
        size = directory_bytes(made)
        _move(made, path)
        self._hold(path)
        self._count(root, size)
        return path

    def _count(self, root: Path, size: int) -> None:
        """Trims the store if it may exceed its limit, by an entry of that size or by those of other processes."""
        with self._lock:
            stale = self._bytes is None or time.monotonic() > self._scanned + _RESCAN_SECONDS
            self._bytes = size + (self._bytes or 0)
            if not stale and self._bytes <= self.limit:
                return
            self._scanned = time.monotonic()
            sweep_store(root)
            self._bytes = trim(root, KINDS, self.limit, self._held)


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
    return _store_at(environment.cache_dir, environment.cache_limit, os.geteuid())


@lru_cache(maxsize=32)
def _store_at(root: Path, limit: int, user: int) -> Store:
    """`user`: what another one wrote is not read."""
    return Store(root, limit)


# In a forked child: a thread of the parent that held a store's lock does not exist there.
os.register_at_fork(after_in_child=_store_at.cache_clear)


def _move(made: Path, path: Path) -> None:
    """Renames a new entry. An equal folder that exists already stays; an equal file is replaced, and so is what is of
    another kind."""
    if path.exists() and made.is_dir() != path.is_dir():
        discard(path.parents[2], path)
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
