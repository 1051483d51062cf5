"""Loading a shared library from bytes in memory, so that the bytes that were checked are the ones that run."""

from __future__ import annotations

import ctypes
import hashlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from treadle.backends.call_lock import CallLock

_loaded: dict[str, ctypes.CDLL] = {}
_loading = CallLock("load_library")


def load_library(image: bytes) -> ctypes.CDLL:
    """The library with these bytes; equal ones are loaded once a process, and stay. OSError if it cannot be loaded."""
    key = hashlib.sha256(image).hexdigest()

    def load() -> ctypes.CDLL:
        if key not in _loaded:
            _loaded[key] = _from_memory(image, len(_loaded)) if _has_memory_files() else _from_folder(image)
        return _loaded[key]

    return _loading.call(load)


def _has_memory_files() -> bool:
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


def _from_memory(image: bytes, number: int) -> ctypes.CDLL:
    """An anonymous file cannot be changed by other processes, and needs no folder from which programs may be
    executed."""
    descriptor = os.memfd_create("treadle-model", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(image)
        return ctypes.CDLL(f"/proc/self/fd{_separator(number)}{descriptor}")
    finally:
        os.close(descriptor)


def _separator(number: int) -> str:
    """A spelling of "/" for each number: the loader would take a path that it has seen for the library that it found
    there."""
    return "/" + "".join("./" if digit == "1" else "/" for digit in f"{number:b}")


def _from_folder(image: bytes) -> ctypes.CDLL:
    """A private copy, which may go as soon as it is mapped."""
    with TemporaryDirectory(prefix="treadle-") as folder:
        path = Path(folder) / "model.so"
        path.write_bytes(image)
        return ctypes.CDLL(str(path))
