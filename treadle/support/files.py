"""Opening files that untrusted input names, that others may have put there, or that only this user may change."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from treadle.errors import TreadleError

# Reading files that others may have put there: a FIFO and a device are refused.

MODEL_BYTES = 2**31 - 1
"""What a model's file may have: protobuf has no larger messages, and weights may lie in files beside it."""

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)


def open_regular(path: Path, most: int, accepted: str) -> BinaryIO:
    """Opens a regular file of at most some bytes, or what a link leads to, for reading.

    TreadleError that names the file for anything else, and where it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise TreadleError(f"cannot read: {error.strerror}", path, accepted) from error
    file = os.fdopen(descriptor, "rb", closefd=True) if _is_regular(descriptor) else None
    if file is None:
        kind = _kind(descriptor)
        os.close(descriptor)
        raise TreadleError(f"is {kind}, not a regular file", path, accepted)
    size = os.fstat(descriptor).st_size
    if size > most:
        file.close()
        raise TreadleError(f"has {size} bytes", path, f"{accepted}, of at most {most} bytes")
    return file


def read_regular(path: Path, most: int, accepted: str) -> bytes:
    """The bytes of a regular file; TreadleError as `open_regular` raises it."""
    with open_regular(path, most, accepted) as file:
        try:
            return file.read()
        except MemoryError:
            raise TreadleError("does not fit into memory", path, accepted) from None
        except OSError as error:
            raise TreadleError(f"cannot read: {error.strerror}", path, accepted) from error


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _kind(descriptor: int) -> str:
    mode = os.fstat(descriptor).st_mode
    return next((kind for test, kind in _KINDS if test(mode)), "a device")


# Opening files that untrusted input names: only regular files inside one folder are opened.
#
# A model names its external data, a manifest the files of its artifact. A name such as `../../etc/passwd`, a link that
# leads out, a device that never ends and a FIFO that blocks are all rejected before anything is opened.

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


# Files and folders that no other user can change: what they hold was written by this user, or by root.
#
# A folder that others may write lets them replace what is in it, unless its sticky bit is set, as that of `/tmp` is.
# Where a user has a group of the same name and without other members, what that group may write is private.

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def why_shared(path: Path) -> str | None:
    """Why another user could have written a file or a folder, or could change it; None if none could.

    The folders above it are not looked at. OSError if there is no such file.
    """
    status = path.stat()
    if not _is_trusted(status.st_uid):
        return f"{path} belongs to {_user(status.st_uid)}"
    return _why_writable(path, status)


def why_folder_shared(folder: Path) -> str | None:
    """As `why_shared`, also of the folders above. What follows should use `folder.resolve()`: links may change."""
    resolved = folder.resolve()
    reasons = (_why_writable(parent, parent.stat()) for parent in resolved.parents)
    return why_shared(resolved) or next((reason for reason in reasons if reason is not None), None)


def is_private_file(path: Path) -> bool:
    """Whether it is a regular file, no link to one, that no other user can have written."""
    try:
        return stat.S_ISREG(path.lstat().st_mode) and why_shared(path) is None
    except OSError:
        return False


def is_private_tree(folder: Path) -> bool:
    """Whether it is a folder that holds nothing but private folders and regular files."""
    try:
        return stat.S_ISDIR(folder.lstat().st_mode) and all(map(_is_private, (folder, *_below(folder))))
    except OSError:
        return False


def make_private_folder(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, for this user alone, whatever the umask. OSError if one
    cannot be made."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None


def make_private(path: Path) -> None:
    """Takes from others the right to change a file, or anything in a folder that was just made."""
    for each in (path, *_below(path)):
        mode = each.lstat().st_mode
        if mode & _OTHERS_WRITE:
            each.chmod(stat.S_IMODE(mode) & ~_OTHERS_WRITE)


def may_write(status: os.stat_result) -> bool:
    """Whether this user may make files in a folder, by its mode; root may in all."""
    user, mode = os.geteuid(), status.st_mode
    return user == 0 or (status.st_uid == user and mode & 0o300 == 0o300) or bool(mode & stat.S_ISVTX)


def _below(path: Path) -> list[Path]:
    return [Path(at) / name for at, folders, files in os.walk(path) for name in (*folders, *files)]


def _is_private(path: Path) -> bool:
    mode = path.lstat().st_mode
    return (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and why_shared(path) is None


def _is_trusted(user: int) -> bool:
    return user in (os.geteuid(), 0)


def _why_writable(path: Path, status: os.stat_result) -> str | None:
    mode = status.st_mode
    by_group = mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
    is_sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    if is_sticky or not (by_group or mode & stat.S_IWOTH):
        return None
    return f"others may write {path} (its mode is {stat.S_IMODE(mode):o})"


def _is_private_group(group: int) -> bool:
    """Whether a group is this user's own, as many systems make one for each user."""
    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
