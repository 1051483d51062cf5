"""Opening files that untrusted input names: only regular files inside one folder are opened.

A model names its external data, a manifest the files of its artifact. A name such as `../../etc/passwd`, a link that
leads out, a device that never ends and a FIFO that blocks are all rejected before anything is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from treadle.errors import TreadleError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True)
class Confinement:
    """A folder whose files may be read.

    root:  the folder; its own path is trusted, and may have links
    owner: the folder in messages, such as `the model's folder`
    what:  its files in messages, such as `external data`
    accepted: what messages say is accepted; by default each message says it of such a file
    descriptor: of the folder, if it is open: then names are taken literally, and no link is followed
    also: another folder into which links may lead, such as that of the file which a model's name is a link to
    """

    root: Path
    owner: str
    what: str
    accepted: str | None = None
    descriptor: int | None = None
    also: Path | None = None

    @classmethod
    def of_model(cls, model: Path) -> Confinement:
        """The external data of a model in a file. Where that is a link, as in caches of model hubs, whose files all are
        links into another folder, its data may be links into that folder, too."""
        also = model.resolve().parent if model.is_symlink() else None
        return cls(model.parent, "the model's folder", "external data", also=also)

    def open(self, name: str, where: object) -> FileIO:
        """The regular file that `name` means relative to the folder, opened for reading, unbuffered.

        Links are followed while they stay inside. TreadleError naming `where` for any other name, and for what is no
        regular file.
        """
        folder, parts = self._parts(name, where)
        try:
            root = os.open(folder, _FOLDER) if self.descriptor is None else os.dup(self.descriptor)
            return os.fdopen(_open_below(root, parts), "rb", buffering=0)
        except _NotRegularError as error:
            accepted = self.accepted or f"a regular file inside {self.root.resolve()}"
            raise TreadleError(f"{self.what} file {_shortened(name)} is {error}", where, accepted) from None
        except FileNotFoundError as error:
            accepted = self.accepted or f"that file inside {self.root.resolve()}"
            raise TreadleError(f"{self.what} file {_shortened(name)} is missing", where, accepted) from error
        except OSError as error:
            message = f"{self.what} file {_shortened(name)} cannot be read: {error.strerror}"
            raise TreadleError(message, where, self.accepted or "a file that can be read") from error

    def _parts(self, name: str, where: object) -> tuple[Path, Sequence[str]]:
        """The folder, and the path from it to the file without links; TreadleError if it leads out."""
        root = self.root.resolve()
        if self.descriptor is not None and "\0" not in name and not {"", ".", ".."} & set(name.split("/")):
            return root, name.split("/")
        folders = [root] if self.also is None or ".." in name.split("/") else [root, self.also]
        try:
            path = (root / name).resolve()
            is_relative = bool(name) and not Path(name).is_absolute()
            inside = next((folder for folder in folders if is_relative and path.is_relative_to(folder)), None)
        except (OSError, ValueError, RuntimeError):  # a name with a NUL, a name too long, links in a circle
            inside, path = None, root
        if inside is None:
            message = f"{self.what} path {_shortened(name)} leaves {self.owner}"
            raise TreadleError(message, where, self.accepted or f"a relative path to a file inside {root}")
        return inside, path.relative_to(inside).parts


class _NotRegularError(Exception):
    """What was found instead of a regular file."""


def _open_below(folder: int, parts: Sequence[str]) -> int:
    """A descriptor of the file below a folder's, which is closed.

    No link is followed, so that one created after the check has no effect.
    """
    try:
        if not parts:
            raise _NotRegularError("a folder")
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        _check_regular(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False))
        file = os.open(parts[-1], _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        _check_regular(os.fstat(file))
    except _NotRegularError:
        os.close(file)
        raise
    return file


def _check_regular(status: os.stat_result) -> None:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a link"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
    )
    if not stat.S_ISREG(status.st_mode):
        raise _NotRegularError(next((kind for test, kind in kinds if test(status.st_mode)), "a device"))


def _shortened(name: str) -> str:
    text = repr(name)
    return text if len(text) <= 200 else f"{text[:200]}..."
