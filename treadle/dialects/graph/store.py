"""The content-addressed store of large constants: one safetensors file a blob, memory-mapped.

`#graph.blob<"sha256:...", n>` names the bytes; the file `<cache>/blobs/<hex>.safetensors` holds them as one
tensor of bytes. Equal constants share a file, whatever their types are.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute

from treadle.dialects.graph.attributes import INLINE_LIMIT, BlobAttr, InlineAttr, digest_of
from treadle.dialects.graph.constant import ConstantOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.errors import TreadleError
from treadle.knobs import load_knobs

_TENSOR = "bytes"
_MAPPED_FROM = 4 << 20
"""Smaller blobs are read into memory: each mapping holds a file descriptor open."""
_KEPT_BYTES = 2 << 30
"""Bytes of blobs, most of them only mapped, that a store remembers; the least recently used are dropped."""


class BlobStore:
    """Blobs below one directory, which is created at the first `put`."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._kept: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()
        self._kept_bytes = 0

    def put(self, array: NDArray[np.generic]) -> BlobAttr:
        """Stores an array's row-major bytes and returns their name.

        TreadleError if the file cannot be written. A damaged file of that name is replaced.
        """
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = digest_of(data)
        if digest not in self._kept:
            path = self.path(digest)
            if not self._holds(path, data):
                _write_atomically(path, data)
            self._keep(digest, _read(path, digest, data.size))
        return BlobAttr.get(digest, data.size)

    def get(self, blob: BlobAttr, type: TensorType[Attribute]) -> NDArray[np.generic]:
        """The blob as a read-only array of `type`'s shape and dtype.

        TreadleError naming the digest if the blob is missing, damaged, or of another size than `type`.
        """
        digest, nbytes = blob.digest.data, blob.nbytes.data
        dtype, shape = numpy_dtype(type.get_element_type()), type.get_shape()
        if nbytes != dtype.itemsize * type.element_count():
            raise TreadleError(f"blob {digest} has {nbytes} bytes, which is no {type}", self.path(digest))
        data = self._kept.get(digest)
        if data is None:
            data = _read(self.path(digest), digest, nbytes)
            if digest_of(data) != digest:
                raise _damaged(self.path(digest), digest)
            self._keep(digest, data)
        self._kept.move_to_end(digest)
        return data.view(dtype).reshape(shape)

    def path(self, digest: str) -> Path:
        """The file that holds, or would hold, the blob."""
        return self.directory / f"{digest.removeprefix('sha256:')}.safetensors"

    def _holds(self, path: Path, data: NDArray[np.uint8]) -> bool:
        if not path.is_file():
            return False
        try:
            return bool(np.array_equal(_read(path, "", data.size), data))
        except TreadleError:
            return False

    def _keep(self, digest: str, data: NDArray[np.uint8]) -> None:
        self._kept[digest] = data
        self._kept_bytes += data.size
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= dropped.size


def default_store() -> BlobStore:
    """The store in the cache directory that the environment names now."""
    return _store_at(load_knobs().cache_dir / "blobs")


@lru_cache(maxsize=8)
def _store_at(directory: Path) -> BlobStore:
    return BlobStore(directory)


def constant_attribute(array: NDArray[np.generic]) -> InlineAttr | BlobAttr:
    """An array as the value of a `graph.constant`: in the text if it is small, else in the default store."""
    return InlineAttr.get(array) if array.size <= INLINE_LIMIT else default_store().put(array)


def constant_array(op: ConstantOp) -> NDArray[np.generic]:
    """The value of a `graph.constant` as a read-only array; TreadleError as `BlobStore.get`."""
    if isinstance(op.value, BlobAttr):
        return default_store().get(op.value, op.type)
    array = op.value.array(op.type)
    array.setflags(write=False)
    return array


def _damaged(path: Path, digest: str) -> TreadleError:
    return TreadleError(
        f"the stored constant {digest or path.stem} is damaged",
        path,
        "a file with the bytes that its name says; delete it and import the model again",
    )


def _write_atomically(path: Path, data: NDArray[np.uint8]) -> None:
    """Writes beside the final name first, so that no reader ever sees half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(save({_TENSOR: data}))
        Path(name).replace(path)
    except OSError as error:
        raise TreadleError(f"cannot store a constant: {error}", path, "a writable TREADLE_CACHE_DIR") from error


def _read(path: Path, digest: str, nbytes: int) -> NDArray[np.uint8]:
    """The bytes of one file, read-only; TreadleError if it is missing or not `nbytes` long."""
    try:
        start = _start_of_data(path, nbytes)
        if start is None:
            raise _damaged(path, digest)
        if nbytes >= _MAPPED_FROM:
            return np.asarray(np.memmap(path, np.uint8, "r", offset=start, shape=(nbytes,)))
        data = np.fromfile(path, np.uint8, offset=start)
    except FileNotFoundError as error:
        wanted = "a blob of this cache directory; import the model again, or set TREADLE_CACHE_DIR to its cache"
        raise TreadleError(f"the store has no constant {digest}", path, wanted) from error
    data.setflags(write=False)
    return data


def _start_of_data(path: Path, nbytes: int) -> int | None:
    """Where a file's bytes begin, or None if it is no safetensors file with one tensor of `nbytes` bytes."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start = 8 + length
        if path.stat().st_size != start + nbytes:
            return None
        try:
            header = cast("dict[str, dict[str, object]]", json.loads(file.read(length)))
            entry = header[_TENSOR]
            return start if entry["data_offsets"] == [0, nbytes] else None
        except (ValueError, KeyError, TypeError):
            return None


__all__ = ["BlobStore", "constant_array", "constant_attribute", "default_store"]
