"""TensorProto to NumPy; sizes are checked before anything is read."""

from __future__ import annotations

import mmap
import os
import sys
from dataclasses import dataclass, field
from math import prod
from pathlib import Path, PurePath

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from treadle.artifact.manifest import Source
from treadle.dialects.graph.constant import default_store
from treadle.dialects.graph.dtypes import MAX_RANK
from treadle.errors import TreadleError
from treadle.support.files import Confinement

# What a file is that is no ONNX model, by its first bytes.

MODELS = "a complete .onnx file"
_BINARY: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"\x89HDF", "an HDF5 file, as Keras writes them", "what tf2onnx writes"),
    (4, b"TFL3", "a TensorFlow Lite model", "what tf2onnx writes"),
    (0, b"ORTM", "a model in ONNX Runtime's own format", MODELS),
    (4, b"ORTM", "a model in ONNX Runtime's own format", MODELS),
    (0, b"GGUF", "a GGUF file", "what `treadle gguf` writes of it"),
    (0, b"\x1f\x8b", "a gzip file", "the .onnx file in it"),
    (0, b"\x7fELF", "a program or a library", MODELS),
    (0, b"version https://git-lfs", "a pointer of Git LFS, not the model", "the file that `git lfs pull` fetches"),
)
"""Offset, bytes, what such a file is, and what is accepted in its place."""
_CUDA = ("CUDA text, which Treadle prints and does not read", MODELS)
_IR = ("MLIR text", f"{MODELS}; `treadle-opt` and `treadle compile` read .mlir files")
_SHOWN = 4096
_KEY_OF_VERSION = b"\x08"


def refuse_foreign_file(data: bytes, name: str) -> None:
    """TreadleError that says what a file is, where that is known and no model."""
    found = _foreign(data, name)
    if found is not None:
        what, accepted = found
        raise TreadleError(f"the file is no ONNX model but {what}", name, accepted)


def _foreign(data: bytes, name: str) -> tuple[str, str] | None:
    if not data:
        return "empty", MODELS
    for offset, magic, what, accepted in _BINARY:
        if data.startswith(magic, offset):
            return what, accepted
    # A model has a version of its IR, whose key is no character of a text.
    text = None if _KEY_OF_VERSION in data else _text(data[:_SHOWN])
    if text is None:
        return None
    if PurePath(name).suffix in (".cu", ".cuh") or "__global__" in text:
        return _CUDA
    if PurePath(name).suffix == ".mlir" or "func.func" in text:
        return _IR
    if text.lstrip()[:14].lower().startswith(("<!doctype html", "<html")):
        return "a web page", MODELS
    return "text", MODELS


def _text(data: bytes) -> str | None:
    """The beginning of a file as text; None where it has bytes that texts have not."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.end < len(data) - 3 or error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    return text if all(character.isprintable() or character.isspace() for character in text) else None


# The external data of a model's tensors: its location, and digests of what was read.
#
# `location`, `offset` and `length` come from the model file, which is untrusted. A file is opened only if a tensor that
# the graph needs names it, and only that tensor's bytes are read.

Bytes = NDArray[np.uint8]

_MAX_DIGITS = 18
"""Of an offset or a length: a file has fewer than 2**63 bytes."""


@dataclass(frozen=True)
class ExternalEntry:
    """A tensor's entry for its external data; a `length` of None means as many bytes as the tensor needs."""

    location: str
    offset: int
    length: int | None


@dataclass
class ExternalFiles:
    """The files below a model's folder that its tensors were read from; `model` is its file, None if it is bytes."""

    model: Path | None
    _mapped: dict[str, Bytes] = field(default_factory=dict[str, Bytes])
    _read: dict[tuple[str, int, int], None] = field(default_factory=dict[tuple[str, int, int], None])

    def read(self, tensor: TensorProto, nbytes: int, where: str) -> Bytes:
        """The `nbytes` bytes of a tensor, mapped read-only.

        TreadleError: an entry that cannot be read or has another length, a file outside of the folder, one that is
        no regular file, and one that is too short.
        """
        entry = external_entry(tensor, where)
        if self.model is None:
            message = f"external data '{entry.location}' of a model given as bytes"
            raise TreadleError(message, where, "the path of the model's file")
        if entry.length not in (None, nbytes):
            message = f"the tensor holds {entry.length} bytes of external data"
            raise TreadleError(message, where, f"{nbytes} bytes, as its shape and type say")
        data = self._file(entry.location, self.model, where)
        if entry.offset + nbytes > data.size:
            name = Path(entry.location).name
            span = f"{entry.offset} to {entry.offset + nbytes}"
            message = f"external data '{name}' has {data.size} bytes, the tensor needs bytes {span}"
            raise TreadleError(message, where, "the complete file that was saved with the model")
        self._read[entry.location, entry.offset, nbytes] = None
        return data[entry.offset : entry.offset + nbytes]

    def sources(self) -> tuple[Source, ...]:
        """The parts of files that were read so far, with their digests."""
        return tuple(self._source(*part) for part in sorted(self._read))

    def _source(self, location: str, offset: int, nbytes: int) -> Source:
        part = self._mapped[location][offset : offset + nbytes]
        return Source(location, offset, nbytes, default_store().digest(part).removeprefix("sha256:"))

    def _file(self, location: str, model: Path, where: str) -> Bytes:
        """One mapping a file, however many tensors it contains: each mapping keeps a descriptor open."""
        if location not in self._mapped:
            with Confinement.of_model(model).open(location, where) as file:
                self._mapped[location] = _map(file.fileno(), location, where)
        return self._mapped[location]


def external_entry(tensor: TensorProto, where: str) -> ExternalEntry:
    """What the tensor's `external_data` says; TreadleError for a key that appears twice, and for no number."""
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        for text in (entry.key, entry.value):
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # protobuf: or bytes
                raise TreadleError(f"external data has the entry {text!r}, which is no text", where, "UTF-8")
        if entry.key in entries:
            raise TreadleError(f"external data has '{entry.key}' twice", where, "each key once")
        entries[entry.key] = entry.value
    length = _number(entries, "length", where)
    return ExternalEntry(entries.get("location", ""), _number(entries, "offset", where) or 0, length)


def _number(entries: dict[str, str], key: str, where: str) -> int | None:
    text = entries.get(key, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
        shown = repr(text) if len(text) < 40 else f"a text of {len(text)} characters"
        raise TreadleError(f"external data has {key} {shown}", where, "a whole number from 0 upwards")
    return int(text)


def _map(descriptor: int, location: str, where: str) -> Bytes:
    size = os.fstat(descriptor).st_size
    if size == 0:
        return np.zeros(0, np.uint8)
    try:
        return np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError, OverflowError) as error:
        message = f"external data file '{location}' of {size} bytes cannot be mapped: {error}"
        raise TreadleError(message, where, "a file that fits into the address space") from error


Array = NDArray[np.generic]

DTYPES: dict[int, np.dtype[np.generic]] = {
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.UINT32: np.dtype(np.uint32),
    TensorProto.UINT64: np.dtype(np.uint64),
    TensorProto.INT4: np.dtype(ml_dtypes.int4),
    TensorProto.UINT4: np.dtype(ml_dtypes.uint4),
    TensorProto.INT2: np.dtype(ml_dtypes.int2),
    TensorProto.UINT2: np.dtype(ml_dtypes.uint2),
    TensorProto.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    TensorProto.FLOAT8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    TensorProto.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    TensorProto.FLOAT8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    TensorProto.FLOAT8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    TensorProto.FLOAT4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
}
"""The element types that are supported, by their ONNX number."""

SUPPORTED_TYPES = (
    "float16, bfloat16, float32, float64, bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, int4, uint4, "
    "int2, uint2, float8e4m3fn, float8e4m3fnuz, float8e5m2, float8e5m2fnuz, float8e8m0, float4e2m1"
)

_PACKED: dict[int, int] = {
    TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4, TensorProto.INT2: 2, TensorProto.UINT2: 2,
}  # fmt: skip
"""Bits of the elements of which several share a byte, the first one in the lowest bits; the last byte is padded."""

_TYPED_FIELDS: dict[int, str] = {
    TensorProto.FLOAT16: "int32_data",
    TensorProto.BFLOAT16: "int32_data",
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.BOOL: "int32_data",
    TensorProto.INT8: "int32_data",
    TensorProto.INT16: "int32_data",
    TensorProto.INT32: "int32_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT8: "int32_data",
    TensorProto.UINT16: "int32_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
    **dict.fromkeys(_PACKED, "int32_data"),
    TensorProto.FLOAT8E4M3FN: "int32_data",
    TensorProto.FLOAT8E4M3FNUZ: "int32_data",
    TensorProto.FLOAT8E5M2: "int32_data",
    TensorProto.FLOAT8E5M2FNUZ: "int32_data",
    TensorProto.FLOAT8E8M0: "int32_data",
}


def dtype_of(elem_type: int, where: str) -> np.dtype[np.generic]:
    """The dtype of an ONNX element type; TreadleError naming the type if it is unsupported."""
    if elem_type in DTYPES:
        return DTYPES[elem_type]
    known = elem_type in TensorProto.DataType.values()
    name = TensorProto.DataType.Name(elem_type).lower() if known else f"number {elem_type}"  # pyright: ignore
    raise TreadleError(f"element type {name} is not supported", where, SUPPORTED_TYPES)


def to_array(tensor: TensorProto, files: ExternalFiles, where: str) -> Array:
    """The values of a tensor as a read-only array.

    files: where external data is read.
    TreadleError: an unsupported element type, a number of bytes or values that is not that of the shape, and as
    `ExternalFiles.read`.
    """
    dtype = dtype_of(tensor.data_type, where)
    shape = tuple(tensor.dims)
    if any(extent < 0 for extent in shape):
        raise TreadleError(f"shape {shape} has a negative extent", where, "extents from 0 upwards")
    if len(shape) > MAX_RANK:
        raise TreadleError(f"the tensor has {len(shape)} dimensions", where, f"at most {MAX_RANK}")
    if prod(max(extent, 1) for extent in shape) * dtype.itemsize > sys.maxsize:
        raise TreadleError(f"a tensor of shape {shape} cannot be addressed", where, f"at most {sys.maxsize} bytes")
    if tensor.HasField("segment"):
        raise TreadleError("the tensor is split into segments", where, "a tensor in one piece")
    bits = _PACKED.get(tensor.data_type)
    nbytes = prod(shape) * dtype.itemsize if bits is None else _packed_bytes(prod(shape), bits)
    if tensor.data_location == TensorProto.EXTERNAL:
        return _elements(files.read(tensor, nbytes, where), dtype, shape, bits)
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != nbytes:
            _fail_size(where, dtype, shape, f"{len(tensor.raw_data)} bytes", f"{nbytes} bytes")
        return _elements(np.frombuffer(tensor.raw_data, np.uint8), dtype, shape, bits)
    field = _TYPED_FIELDS[tensor.data_type]
    count, needed = len(getattr(tensor, field)), prod(shape) if bits is None else nbytes
    if count != needed:
        _fail_size(where, dtype, shape, f"{count} values in {field}", f"{needed} values")
    array = numpy_helper.to_array(tensor)
    array.setflags(write=False)
    return array


def _packed_bytes(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def _elements(data: NDArray[np.uint8], dtype: np.dtype[np.generic], shape: tuple[int, ...], bits: int | None) -> Array:
    """The elements of which these are the bytes of the file, read-only."""
    if bits is None:
        return data.view(dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)
    places = np.arange(0, 8, bits, dtype=np.uint8)
    apart = np.bitwise_and(np.right_shift(data[:, None], places), (1 << bits) - 1).astype(np.uint8)
    array = apart.reshape(-1)[: prod(shape)].view(dtype).reshape(shape)
    array.setflags(write=False)
    return array


def _fail_size(where: str, dtype: np.dtype[np.generic], shape: tuple[int, ...], has: str, needs: str) -> None:
    raise TreadleError(f"a tensor of {dtype} and shape {shape} holds {has}", where, needs)
