"""A compiled model as a folder: what is in it, and how its files are read.

| file             | what                                                                          |
|------------------|-------------------------------------------------------------------------------|
| `manifest.json`  | a `Manifest`, with the sha256 of every other file                             |
| `module.mlir.gz` | the lowered IR, as compressed text (`zcat` prints it)                         |
| `weights/`       | the constants: a file each, of nothing but its bytes, named by their sha256   |
| `kernels/`       | the text of every kernel: `.c` and `.h`, or `.cu`, `.h` and `.cubin`          |
| `model.so`       | `cpu` only: the kernels and the thread pool, compiled                         |

An artifact is a program: whoever runs it runs what its author wrote. The digests find damage, not malice. A file is
compared with its digest when it is read, and what was compared is what is used: the bytes in memory, not the file.
Large weights stay in the file that was compared, which is mapped (ADR 0057): an artifact that is in use is replaced, by
renaming as `save` does, and not written into, as `cp` does. A call refuses a file that was; one that is cut off in a
call ends the process (SIGBUS).
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import mmap
import os
import time
import zlib
from dataclasses import replace
from io import FileIO
from pathlib import Path

from treadle.artifact.manifest import (
    MANIFEST,
    WROTE_IT,
    Manifest,
    manifest_text,
    parse_manifest,
)
from treadle.errors import TreadleError
from treadle.support.files import Confinement
from treadle.support.publishing import FolderLock, share

MODULE = "module.mlir.gz"
WEIGHTS = "weights"
_MAX_MANIFEST_BYTES = 64 << 20
_ATTEMPTS, _PAUSE = 500, 0.01
_LEAST_PIECE, _MOST_PIECES = 256 << 10, 1024
"""Bytes of a piece of a mapping that is cut, and how many there are at most: Linux has 65530 for a process. Resident
after 128 random rows of BERT-base's embedding of 89 MiB, Linux 6.18: 67 MiB as one piece, also where small pages were
asked for; 14, 8 and 7 with pieces of 1 MiB, 256 and 64 KiB."""


class Artifact:
    """A compiled model in a folder, whose manifest was read.

    The folder stays unchanged while this object lives: it is opened once, and its lock is shared. Another artifact may
    get its name meanwhile, and the cache may evict it; this object still reads its own files.
    """

    def __init__(self, folder: Path):
        """TreadleError if there is no artifact, or its manifest is damaged."""
        self.folder = folder
        where = folder / MANIFEST
        self._mapped: dict[str, os.stat_result] = {}
        try:
            self._lock = _shared_lock(folder)
            os.stat(MANIFEST, dir_fd=self._lock.descriptor, follow_symlinks=False)
        except OSError as error:
            raise TreadleError(f"no compiled model: {error.strerror}", where, WROTE_IT) from error
        try:
            self.manifest = self._parsed(where)
        except TreadleError:
            self._lock.release()
            raise

    def read(self, name: str) -> bytes:
        """The bytes of a file; TreadleError for one that the manifest does not list, that is missing, or changed."""
        expected = self._expected(name)
        with self._open(name) as file:
            data = file.readall()
        if hashlib.sha256(data).hexdigest() != expected:
            raise _changed(self.folder / name)
        return data

    def read_text(self, name: str) -> str:
        """As `read`, of a text in UTF-8."""
        try:
            return self.read(name).decode()
        except UnicodeDecodeError as error:
            raise TreadleError("the file is no text in UTF-8", self.folder / name, WROTE_IT) from error

    def module_text(self) -> str:
        """The lowered IR; TreadleError as `read`, and for a file that is no compressed text."""
        try:
            return gzip.decompress(self.read(MODULE)).decode()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise TreadleError("the file is no compressed text in UTF-8", self.folder / MODULE, WROTE_IT) from error

    def read_into(self, name: str, buffer: memoryview) -> None:
        """Fills a buffer with a file of exactly its size; TreadleError as `read`, and for another size."""
        expected, filled = self._expected(name), 0
        with self._open(name) as file:
            self._check_size(file, name, buffer.nbytes)
            while count := file.readinto(buffer[filled:]):
                filled += count
        if hashlib.sha256(buffer).hexdigest() != expected:
            raise _changed(self.folder / name)

    def map(self, name: str, size: int, *, sparse: bool) -> memoryview:
        """The bytes of a file of exactly `size` bytes, at least one, read-only: pages are loaded where they are read,
        few at a time if the reads are sparse.

        The file is compared with its digest first. TreadleError as `read_into`, and if it cannot be mapped.
        """
        expected = self._expected(name)
        with self._open(name) as file:
            self._check_size(file, name, size)
            self._mapped[name] = os.fstat(file.fileno())
            self._compare(file, name, expected)
            try:
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            except (OSError, ValueError, OverflowError) as error:
                message, accepted = f"{size} bytes cannot be mapped: {error}", "a file that fits into the address space"
                raise TreadleError(message, self.folder / name, accepted) from error
        if sparse and hasattr(mmap, "MADV_RANDOM"):
            _cut(mapped)
        return memoryview(mapped)

    def check_mapped(self) -> None:
        """TreadleError if a file that is mapped was written into since: a few us a file, so that each call can ask.

        A file that was replaced, or removed, is none: what was mapped is still there.
        """
        for name, before in self._mapped.items():
            try:
                now = os.stat(name, dir_fd=self._lock.descriptor, follow_symlinks=False)
            except OSError:
                continue
            if os.path.samestat(now, before) and (now.st_mtime_ns, now.st_size) != (before.st_mtime_ns, before.st_size):
                self._check_written(name)
                self._mapped[name] = now

    def _check_written(self, name: str) -> None:
        """TreadleError if a file has other bytes than before."""
        with self._open(name) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self._expected(name):
                message = "the file was written into while the model uses it"
                accepted = "a folder that is replaced as a whole, as `save` does, and loaded again"
                raise TreadleError(message, self.folder / name, accepted)

    def check(self) -> None:
        """Compares all files with their digests, without keeping them in memory; TreadleError as `read`."""
        for name, expected in self.manifest.files.items():
            with self._open(name) as file:
                self._compare(file, name, expected)

    def _check_size(self, file: FileIO, name: str, needed: int) -> None:
        size = os.fstat(file.fileno()).st_size
        if size != needed:
            message = f"the file has {size} bytes, {needed} are needed"
            raise TreadleError(message, self.folder / name, WROTE_IT)

    def _compare(self, file: FileIO, name: str, expected: str) -> None:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise _changed(self.folder / name)

    def _parsed(self, where: Path) -> Manifest:
        with self._open(MANIFEST) as file:
            data = file.read(_MAX_MANIFEST_BYTES + 1)
        if len(data) > _MAX_MANIFEST_BYTES:
            message = f"the manifest is damaged: it has more than {_MAX_MANIFEST_BYTES} bytes"
            raise TreadleError(message, where, WROTE_IT)
        return parse_manifest(data, where)

    def _expected(self, name: str) -> str:
        if name not in self.manifest.files:
            raise TreadleError(f"the manifest lists no file '{name}'", self.folder, WROTE_IT)
        return self.manifest.files[name]

    def _open(self, name: str) -> FileIO:
        confinement = Confinement(
            self.folder, "the artifact's folder", "the artifact's", WROTE_IT, self._lock.descriptor
        )
        return confinement.open(name, self.folder / name)

    def copy_to(self, folder: Path) -> None:
        """Copies the artifact into an empty folder; TreadleError as `read`."""
        for name in self.manifest.files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.read(name))
        (folder / MANIFEST).write_bytes(manifest_text(self.manifest).encode())


def write_module(folder: Path, text: str) -> None:
    """Writes the lowered IR. Equal texts give equal files."""
    (folder / MODULE).write_bytes(gzip.compress(text.encode(), mtime=0))


def write_manifest(folder: Path, manifest: Manifest) -> str:
    """Writes `manifest.json`, with the digests of the files that are in the folder now; its own sha256 (hex)."""
    files = {
        path.relative_to(folder).as_posix(): path.name if path.parent == folder / WEIGHTS else file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    data = manifest_text(replace(manifest, files=files)).encode()
    (folder / MANIFEST).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """The sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_artifact(folder: Path) -> bool:
    """Whether a folder has a manifest of this format; its files are not checked."""
    try:
        Artifact(folder)
    except TreadleError:
        return False
    return True


def _shared_lock(folder: Path) -> FolderLock:
    """The folder's lock. A folder that is being removed is waited for: another one may follow, or none."""
    for _ in range(_ATTEMPTS):
        lock = share(folder)
        if lock is not None:
            return lock
        time.sleep(_PAUSE)
    raise OSError(errno.EBUSY, "it is being removed", str(folder))


def _cut(mapped: mmap.mmap) -> None:
    """Cuts a mapping into pieces, of which Linux loads one page or some at a touch; else it loads as much as the file's
    cache has in one block of memory, up to 2 MiB. Advice that differs from the neighbour's is what separates them."""
    size = len(mapped)
    piece = max(_LEAST_PIECE, -(-size // _MOST_PIECES // _LEAST_PIECE) * _LEAST_PIECE)
    for start in range(0, size, 2 * piece):
        mapped.madvise(mmap.MADV_RANDOM, start, min(piece, size - start))


def _changed(path: Path) -> TreadleError:
    return TreadleError("the file is damaged: its digest differs from the manifest's", path, WROTE_IT)
