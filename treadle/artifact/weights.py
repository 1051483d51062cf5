"""The constants of an artifact: a file each, of nothing but their bytes, named by their sha256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from treadle.artifact.artifact import WEIGHTS, Artifact
from treadle.artifact.manifest import WROTE_IT, Tensor
from treadle.errors import TreadleError

ALIGNMENT = 64
"""Bytes: constants are read into memory at a multiple of it, as the kernels need them, so that they are not copied
again."""

_MAPPED_FROM = 4 << 20
"""Bytes: smaller constants are read into memory, since each mapping holds a file descriptor open. Larger ones are
mapped: a call reads few rows of an embedding, whose other pages are then never loaded."""

Array = np.ndarray[Any, Any]


def write_weights(constants: Iterable[tuple[Array, Path | None]], folder: Path) -> tuple[Tensor, ...]:
    """Writes the constants' bytes, equal ones once; each constant's key, shape and type.

    An array comes with a file that has its bytes, if there is one: it is hard-linked instead of copied, where possible.
    """
    (folder / WEIGHTS).mkdir()
    return tuple(_write(array, stored, folder / WEIGHTS) for array, stored in constants)


def read_weights(artifact: Artifact) -> list[Array]:
    """The constants in the manifest's order; TreadleError for one that is missing, changed, or of another size."""
    constants = {tensor.name: tensor for tensor in artifact.manifest.constants}
    storage = _Storage(sum(_aligned(each.num_bytes) for each in constants.values() if each.num_bytes < _MAPPED_FROM))
    read = {name: _read(artifact, tensor, storage) for name, tensor in constants.items()}
    for tensor in artifact.manifest.constants:
        if read[tensor.name].nbytes != tensor.num_bytes:
            message = f"constant {tensor} has {read[tensor.name].nbytes} bytes"
            raise TreadleError(message, artifact.folder / WEIGHTS / tensor.name, WROTE_IT)
    return [read[t.name].view(t.dtype).reshape(t.shape) for t in artifact.manifest.constants]


class _Storage:
    """Memory for all constants that are read: in one piece, NumPy asks Linux for huge pages of it."""

    def __init__(self, size: int):
        self._bytes = np.empty(size + ALIGNMENT, np.uint8)
        self._next = -self._bytes.ctypes.data % ALIGNMENT

    def take(self, size: int) -> Array:
        """The next `size` bytes, aligned."""
        start = self._next
        self._next += _aligned(size)
        return self._bytes[start : start + size]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _write(array: Array, stored: Path | None, folder: Path) -> Tensor:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    name = stored.name if stored is not None else hashlib.sha256(data.data).hexdigest()
    path = folder / name
    if not path.exists() and (stored is None or not _linked(stored, path)):
        path.write_bytes(data.data)
    return Tensor(name, array.shape, array.dtype.name)


def _linked(stored: Path, path: Path) -> bool:
    """Whether a file was hard-linked; some file systems have no hard links, or limit their number."""
    try:
        os.link(stored, path)
    except OSError:
        return False
    return True


def _read(artifact: Artifact, tensor: Tensor, storage: _Storage) -> Array:
    name = f"{WEIGHTS}/{tensor.name}"
    if tensor.num_bytes >= _MAPPED_FROM:
        sparse = tensor.name in artifact.manifest.sparse
        return np.frombuffer(artifact.map(name, tensor.num_bytes, sparse=sparse), np.uint8)
    array = storage.take(tensor.num_bytes)
    artifact.read_into(name, array.data)
    return array
