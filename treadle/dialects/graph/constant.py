"""The constant operator, and the content-addressed store of large constants."""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from treadle.artifact.store import Store, store_of
from treadle.dialects.graph.attributes import INLINE_LIMIT, BlobAttr, InlineAttr, digest_of
from treadle.dialects.graph.dtypes import byte_width, is_supported, numpy_dtype
from treadle.environment import load_environment
from treadle.errors import TreadleError
from treadle.support.files import is_private_file
from treadle.support.mapped import mapping_of, release_pages


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """A tensor known at compile time: a few values in the text, or the name of a blob in the store.

    ```mlir
    %a = graph.constant #graph.inline<"1.0, -inf"> : tensor<2xf32>
    %w = graph.constant #graph.blob<"sha256:...", 9437184> : tensor<768x3072xf32>
    ```
    Rejected: symbolic dimensions, text or a number of bytes that does not fit the type.
    """

    name = "graph.constant"
    value = prop_def(BlobAttr | InlineAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `:` type($result)"

    def __init__(self, value: BlobAttr | InlineAttr, type: TensorType):
        super().__init__(properties={"value": value}, result_types=[type])

    @property
    def type(self) -> TensorType:
        return self.result.type

    def verify_(self) -> None:
        type = self.type
        if DYNAMIC_INDEX in type.get_shape() or not is_supported(type.get_element_type()):
            raise VerifyException(f"a constant has static extents and a supported element type, not {type}")
        if isinstance(self.value, BlobAttr):
            expected = type.element_count() * byte_width(type.get_element_type())
            if self.value.nbytes.data != expected:
                raise VerifyException(f"a blob of {self.value.nbytes.data} bytes is no {type} ({expected} bytes)")
            return
        try:
            self.value.array(type)
        except (ValueError, KeyError, OverflowError) as error:
            raise VerifyException(f"{self.value.text.data!r} is no {type}: {error}") from error


# The content-addressed store of large constants: a file each, memory-mapped.
#
# `#graph.blob<"sha256:...", n>` names the bytes; a file of the cache's store that is named by the same digest holds
# them, and nothing else. Equal constants share a file, whatever their types are.

_KIND = "blobs"
_MAPPED_FROM = 4 << 20
"""Smaller blobs are read into memory: each mapping holds a file descriptor open."""
_KEPT_BYTES = 2 << 30
"""Bytes of blobs, most of them only mapped, that a store remembers; the least recently used are dropped."""
_RESIDENT_BYTES = 256 << 20
"""Bytes of blobs that are put before the pages of mapped ones are given back. A model of 2.5 GB takes 1.7 GB of
resident memory to compile (`python -m benchmarks.language_compile`)."""


class _Scope(threading.local):
    """What the thread defers; None outside of `BlobStore.deferred`."""

    names: set[str] | None = None


class BlobStore:
    """The constants in a store."""

    def __init__(self, store: Store):
        self._store = store
        self._kept: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()
        self._kept_bytes = 0
        self._compared: dict[str, tuple[int, int, int]] = {}
        """The files, as `_identity` has them, of which this process knows that they have the bytes of their name."""
        self._deferred: dict[str, NDArray[np.uint8]] = {}
        self._digests: dict[tuple[int, int], str] = {}
        """Of deferred memory, by its address and its bytes."""
        self._holders = Counter[str]()
        """How many threads defer a blob."""
        self._scope = _Scope()
        self._unreleased = 0
        self._lock = threading.Lock()
        """Of what is kept: models may be compiled in several threads."""

    def put(self, array: NDArray[np.generic]) -> BlobAttr:
        """Stores an array's row-major bytes and returns their name.

        TreadleError if the store cannot be written. A damaged file of that name is replaced.
        """
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = self.digest(data)
        blob = BlobAttr.get(digest, data.size)
        self._release(data.size)
        if self._stays(digest, data):
            return blob
        path = self.path(digest)
        if self._remembered(digest) is not None and path.exists():
            self._store.use(path)
            return blob
        self._write(digest, data)
        return blob

    def get(self, blob: BlobAttr, type: TensorType[Attribute]) -> NDArray[np.generic]:
        """The blob as a read-only array of `type`'s shape and dtype.

        TreadleError naming the digest if the blob is missing, damaged, or of another size than `type`.
        """
        digest, nbytes = blob.digest.data, blob.nbytes.data
        dtype, shape = numpy_dtype(type.get_element_type()), type.get_shape()
        if nbytes != dtype.itemsize * type.element_count():
            raise TreadleError(f"blob {digest} has {nbytes} bytes, which is no {type}", self.path(digest))
        data = self._remembered(digest)
        if data is None:
            path = self.path(digest)
            data = _read(path, digest, nbytes)
            if self._compared.get(digest) != _identity(path) and digest_of(data) != digest:
                raise _damaged(path, digest)
            self._keep(path, digest, data)
        return data.view(dtype).reshape(shape)

    @contextmanager
    def deferred(self) -> Generator[None]:
        """Meanwhile constants that this thread puts, and that are in files that are mapped, such as a model's weights,
        stay where they are: a file of the store has them from `file` on. Most are never stored, since passes replace
        them."""
        if self._scope.names is not None:
            yield
            return
        names = self._scope.names = set[str]()
        try:
            yield
        finally:
            self._scope.names = None
            with self._lock:
                self._holders.subtract(names)
                for name in names:
                    if not self._holders[name]:
                        del self._holders[name], self._digests[_memory(self._deferred.pop(name))]

    def digest(self, data: NDArray[np.uint8]) -> str:
        """As `digest_of`, which of deferred memory was computed before."""
        return self._digests.get(_memory(data)) or digest_of(data)

    def file(self, digest: str) -> Path:
        """The file that holds a blob, which is written if it was deferred; TreadleError as `put`."""
        data = self._deferred.get(digest)
        if data is not None:
            self._write(digest, data)
        return self.path(digest)

    def path(self, digest: str) -> Path:
        """The file that holds, or would hold, the blob."""
        return self._store.content_path(_KIND, _hex(digest))

    def _release(self, put: int) -> None:
        """Gives the pages of mapped blobs back where so many bytes were put since."""
        with self._lock:
            self._unreleased += put
            full = self._unreleased > _RESIDENT_BYTES
            mapped = [*self._deferred.values(), *self._kept.values()] if full else []
            self._unreleased = 0 if full else self._unreleased
        for each in mapped:
            release_pages(each)

    def _stays(self, digest: str, data: NDArray[np.uint8]) -> bool:
        """Whether a blob stays where it is mapped."""
        names = self._scope.names
        if names is None or data.size < _MAPPED_FROM or data.flags.writeable or mapping_of(data) is None:
            return False
        with self._lock:
            self._holders[digest] += digest not in names
            names.add(digest)
            if digest not in self._deferred:
                self._deferred[digest] = data
                self._digests[_memory(data)] = digest
        release_pages(data)
        return True

    def _write(self, digest: str, data: NDArray[np.uint8]) -> None:
        path = self.path(digest)
        if self._holds(path, data):
            self._store.use(path)
        else:
            path = self._store.add_content(_KIND, _hex(digest), data.data)
        self._keep(path, digest, _read(path, digest, data.size))

    def _holds(self, path: Path, data: NDArray[np.uint8]) -> bool:
        try:
            return bool(np.array_equal(_read(path, "", data.size), data))
        except TreadleError:
            return False

    def _remembered(self, digest: str) -> NDArray[np.uint8] | None:
        """A blob that is kept, which was then used last; None if it is not."""
        with self._lock:
            data = self._deferred.get(digest)
            if data is not None:
                return data
            data = self._kept.get(digest)
            if data is not None:
                self._kept.move_to_end(digest)
            return data

    def _keep(self, path: Path, digest: str, data: NDArray[np.uint8]) -> None:
        """Remembers a blob whose file has the bytes of its name."""
        compared = _identity(path)
        with self._lock:
            if compared is not None:
                self._compared[digest] = compared
            self._kept_bytes += data.size - (self._kept[digest].size if digest in self._kept else 0)
            self._kept[digest] = data
            self._kept.move_to_end(digest)
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= dropped.size


def default_store() -> BlobStore:
    """The constants in the cache that the environment names now."""
    return _blobs_of(store_of(load_environment()))


@lru_cache(maxsize=8)
def _blobs_of(store: Store) -> BlobStore:
    return BlobStore(store)


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


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Which file is at a path, as long as nobody writes into it; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size


def _memory(data: NDArray[np.uint8]) -> tuple[int, int]:
    return data.__array_interface__["data"][0], data.nbytes


def _read(path: Path, digest: str, nbytes: int) -> NDArray[np.uint8]:
    """The bytes of one file, read-only; TreadleError if it is missing, another user's, or not `nbytes` long."""
    wanted = "a constant of this cache directory; import the model again, or set TREADLE_CACHE_DIR to its cache"
    try:
        if not is_private_file(path):  # nor a FIFO, or a link to a device
            raise FileNotFoundError(path)
        if path.stat().st_size != nbytes:
            raise _damaged(path, digest)
        if nbytes >= _MAPPED_FROM:
            return np.asarray(np.memmap(path, np.uint8, "r", shape=(nbytes,)))
        data = np.fromfile(path, np.uint8)
    except FileNotFoundError as error:
        raise TreadleError(f"the store has no constant {digest}", path, wanted) from error
    data.setflags(write=False)
    return data


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
