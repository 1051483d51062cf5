"""Files and folders that no other user can change: what they hold was written by this user, or by root.

A folder that others may write lets them replace what is in it, unless its sticky bit is set, as that of `/tmp` is.
Where a user has a group of the same name and without other members, what that group may write is private.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from pathlib import Path

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


__all__ = [
    "is_private_file", "is_private_tree", "make_private", "make_private_folder", "may_write", "why_folder_shared",
    "why_shared",
]  # fmt: skip
