"""The files of a database of tuned schedules. Kept apart from their IR, which a cached model does not parse."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from treadle.errors import TreadleError
from treadle.support.files import read_regular

_WORDS = re.compile(r"[^a-z0-9]+")
ACCEPTED = "a file that `treadle tune` wrote"
MOST_ENTRY_BYTES, MOST_RECORD_BYTES = 64 << 20, 1 << 30
"""Of an entry, and of the records of a group: of larger ones nothing is read."""
_ENTRY = re.compile(r".+-[0-9a-f]{12}\.mlir")


@dataclass(frozen=True)
class DatabaseFiles:
    """A database's folder: in it a folder for each kind of hardware, with a file for each group."""

    folder: Path

    def hardware(self) -> list[str]:
        """The names of the folders that have entries."""
        return sorted(each.name for each in self.folder.iterdir() if each.is_dir() and _entries(each))

    def measured(self) -> list[str]:
        """The names of the folders that have records of measured candidates."""
        return sorted({path.parent.name for path in self.folder.glob("*/*.jsonl")})

    def fingerprint(self, hardware: str) -> str:
        """A digest of all entries for one kind of hardware; empty if there are none. What cannot be read counts as
        empty: no schedule is taken from it."""
        hasher = hashlib.sha256()
        paths = _entries(self.folder / slug(hardware))
        for path in paths:
            hasher.update(f"{path.name} {_digest(path)};".encode())
        return hasher.hexdigest() if paths else ""

    def path_of(self, digest: str, hardware: str, suffix: str = ".mlir") -> Path | None:
        """The file of a group; None if there is none."""
        found = sorted((self.folder / slug(hardware)).glob(f"*-{digest}{suffix}"))
        return found[0] if found else None


def open_database(folder: Path) -> DatabaseFiles:
    """The database in a folder; TreadleError if there is no such folder."""
    if not folder.is_dir():
        raise TreadleError("there is no such folder", folder, "a database that `treadle tune` wrote")
    return DatabaseFiles(folder)


def digest_of(name: str) -> str:
    """The digest in the name of a group's file, without its suffix."""
    return name.rpartition("-")[2]


def slug(text: str) -> str:
    """Converts a text to a part of a file's name: small letters, digits, and one - or _ between words."""
    return "_".join(_WORDS.sub("-", part).strip("-") for part in text.lower().split("_")).strip("_") or "unnamed"


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_regular(path, MOST_ENTRY_BYTES, ACCEPTED)).hexdigest()
    except TreadleError:
        return ""


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.mlir") if _ENTRY.fullmatch(path.name))


__all__ = ["ACCEPTED", "MOST_ENTRY_BYTES", "MOST_RECORD_BYTES", "DatabaseFiles", "digest_of", "open_database", "slug"]
