"""A content-addressed store of compiled files that survives crashes, damage and concurrent writers."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from treadle.errors import TreadleError


def digest(*parts: str | bytes) -> str:
    """The sha256 (hex) of the parts; each is preceded by its length, so no two different lists agree."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(f"{len(data)}:".encode())
        hasher.update(data)
    return hasher.hexdigest()


def fetch(directory: Path, key: str, suffix: str, produce: Callable[[Path], None]) -> Path:
    """The file `key + suffix` below `directory`, made by `produce(path)` unless an undamaged one is there.

    Beside each file lies the sha256 of its contents; a file that does not match, or has none, is made anew.
    Files appear under their names by atomic renaming, so a reader never sees half of one. Raises TreadleError
    where the directory cannot be written.
    """
    folder = directory / key[:2]
    target = folder / f"{key}{suffix}"
    seal = folder / f"{key}{suffix}.sha256"
    if _is_sound(target, seal):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as scratch:
            made = Path(scratch) / f"file{suffix}"
            produce(made)
            made_seal = Path(scratch) / "seal"
            made_seal.write_text(digest(made.read_bytes()))
            os.replace(made, target)
            os.replace(made_seal, seal)
    except OSError as error:
        accepted = "TREADLE_CACHE_DIR naming a writable folder"
        raise TreadleError(f"cannot write the cache: {error}", directory, accepted) from error
    return target


def _is_sound(target: Path, seal: Path) -> bool:
    try:
        return seal.read_text() == digest(target.read_bytes())
    except (OSError, UnicodeDecodeError):
        return False
