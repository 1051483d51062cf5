"""A compiled model as a folder: what is in it, and how its files are read.

| file                  | what                                                                    |
|-----------------------|-------------------------------------------------------------------------|
| `manifest.json`       | a `Manifest`, with the sha256 of every other file                       |
| `module.mlir`         | the lowered IR, as text                                                 |
| `weights.safetensors` | the constants, named `0`, `1`, ...; equal ones are stored once          |
| `kernels/`            | the text of every kernel: `.c` and `.h`, or `.cu`, `.h` and `.cubin`    |
| `model.so`            | `cpu` only: the kernels and the thread pool, compiled                   |

An artifact is a program: whoever runs it runs what its author wrote. The digests find damage, not malice. A file is
compared with its digest when it is read, and what was compared is what is used: the bytes in memory, not the file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from treadle.confined_files import Confinement
from treadle.errors import TreadleError
from treadle.manifest import (
    MANIFEST,
    WROTE_IT,
    Manifest,
    manifest_text,
    parse_manifest,
)

_CHUNK = 1 << 20
_MAX_MANIFEST_BYTES = 64 << 20


@dataclass(frozen=True)
class Artifact:
    """A compiled model in a folder, whose manifest was read."""

    folder: Path
    manifest: Manifest

    @classmethod
    def at(cls, folder: Path) -> Artifact:
        """The artifact in a folder; TreadleError if there is none, or its manifest is damaged."""
        if not (folder / MANIFEST).exists():
            raise TreadleError("no compiled model: No such file or directory", folder / MANIFEST, WROTE_IT)
        with _confinement(folder).open(MANIFEST, folder / MANIFEST) as file:
            data = file.read(_MAX_MANIFEST_BYTES + 1)
        if len(data) > _MAX_MANIFEST_BYTES:
            message = f"the manifest is damaged: it has more than {_MAX_MANIFEST_BYTES} bytes"
            raise TreadleError(message, folder / MANIFEST, WROTE_IT)
        return cls(folder, parse_manifest(data, folder / MANIFEST))

    def read(self, name: str) -> bytes:
        """The bytes of a file; TreadleError for one that the manifest does not list, that is missing, or changed."""
        expected = self.manifest.files.get(name)
        if expected is None:
            raise TreadleError(f"the manifest lists no file '{name}'", self.folder, WROTE_IT)
        with _confinement(self.folder).open(name, self.folder / name) as file:
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

    def check(self) -> None:
        """Compares all files with their digests, and keeps none of them in memory; TreadleError as `read`."""
        for name, expected in self.manifest.files.items():
            hasher = hashlib.sha256()
            with _confinement(self.folder).open(name, self.folder / name) as file:
                while chunk := file.read(_CHUNK):
                    hasher.update(chunk)
            if hasher.hexdigest() != expected:
                raise _changed(self.folder / name)

    def copy_to(self, folder: Path) -> None:
        """Copies the artifact into an empty folder; TreadleError as `read`."""
        for name in self.manifest.files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.read(name))
        (folder / MANIFEST).write_text(manifest_text(self.manifest))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes `manifest.json`, with the digests of the files that are in the folder now."""
    files = {
        path.relative_to(folder).as_posix(): file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    (folder / MANIFEST).write_text(manifest_text(replace(manifest, files=files)))


def file_digest(path: Path) -> str:
    """The sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_artifact(folder: Path) -> bool:
    """Whether a folder holds a manifest of this format; its files are not checked."""
    try:
        Artifact.at(folder)
    except TreadleError:
        return False
    return True


def _confinement(folder: Path) -> Confinement:
    return Confinement(folder, "the artifact's folder", "the artifact's", WROTE_IT)


def _changed(path: Path) -> TreadleError:
    return TreadleError("the file is damaged: its digest differs from the manifest's", path, WROTE_IT)


def publish(final: Path, write: Callable[[Path], None], *, replace: Callable[[Path], bool] | None = None) -> None:
    """Puts what `write(folder)` makes under the name `final`, in one step; nothing is left behind on failure.

    An existing folder is replaced if it is empty or `replace(final)` holds (default: it is an artifact). Raises
    TreadleError where it is not, and where the place cannot be written.
    """
    check_replaceable(final, replace)
    scratch: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}-"))
        made = scratch / "new"
        made.mkdir()
        write(made)
        if final.exists():
            final.rename(scratch / "old")
        made.rename(final)
    except OSError as error:
        reason = error.strerror or error
        raise TreadleError(f"cannot write: {reason}", final, "a folder in a place that can be written") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def check_replaceable(final: Path, replace: Callable[[Path], bool] | None = None) -> None:
    """Raises TreadleError unless `publish` may put something under the name `final`."""
    nearest = next(parent for parent in (final.absolute(), *final.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        raise TreadleError(f"{nearest} is a file", final, "a folder that is new, empty, or an earlier result")
    if not os.access(nearest if nearest != final.absolute() else nearest.parent, os.W_OK):
        raise TreadleError("cannot write: Permission denied", final, "a folder in a place that can be written")
    may_replace = is_artifact if replace is None else replace
    if final.is_dir() and any(final.iterdir()) and not may_replace(final):
        raise TreadleError("the folder holds other files", final, "a folder that is new, empty, or an earlier result")
