"""TensorProto to NumPy: sizes are checked before reading, external data stays in the model's folder."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from treadle.errors import TreadleError

Array = NDArray[np.generic]

DTYPES: dict[int, np.dtype[np.generic]] = {
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.INT64: np.dtype(np.int64),
}
"""The element types that are supported, by their ONNX number."""

SUPPORTED_TYPES = "float16, float32, float64, bool, int8, int16, int32, int64"

_TYPED_FIELDS: dict[int, str] = {
    TensorProto.FLOAT16: "int32_data",
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.BOOL: "int32_data",
    TensorProto.INT8: "int32_data",
    TensorProto.INT16: "int32_data",
    TensorProto.INT32: "int32_data",
    TensorProto.INT64: "int64_data",
}


def dtype_of(elem_type: int, where: str) -> np.dtype[np.generic]:
    """The dtype of an ONNX element type; TreadleError naming the type if it is unsupported."""
    if elem_type in DTYPES:
        return DTYPES[elem_type]
    known = elem_type in TensorProto.DataType.values()
    name = TensorProto.DataType.Name(elem_type).lower() if known else f"number {elem_type}"  # pyright: ignore
    raise TreadleError(f"element type {name} is not supported", where, SUPPORTED_TYPES)


def to_array(tensor: TensorProto, folder: Path | None, where: str) -> Array:
    """The values of a tensor as a read-only array.

    folder: where external data may lie; None for a model that came as bytes.
    TreadleError: an unsupported element type, a number of bytes or values that is not that of the shape,
    external data that is missing, too short, or outside of `folder`.
    """
    dtype = dtype_of(tensor.data_type, where)
    shape = tuple(tensor.dims)
    if any(extent < 0 for extent in shape):
        raise TreadleError(f"shape {shape} has a negative extent", where, "extents from 0 upwards")
    if tensor.HasField("segment"):
        raise TreadleError("the tensor is split into segments", where, "a tensor in one piece")
    nbytes = prod(shape) * dtype.itemsize
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external(tensor, folder, where, dtype, shape, nbytes)
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != nbytes:
            _fail_size(where, dtype, shape, f"{len(tensor.raw_data)} bytes", f"{nbytes} bytes")
        return np.frombuffer(tensor.raw_data, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)
    field = _TYPED_FIELDS[tensor.data_type]
    count = len(getattr(tensor, field))
    if count != prod(shape):
        _fail_size(where, dtype, shape, f"{count} values in {field}", f"{prod(shape)} values")
    array = numpy_helper.to_array(tensor)
    array.setflags(write=False)
    return array


def _fail_size(where: str, dtype: np.dtype[np.generic], shape: tuple[int, ...], has: str, needs: str) -> None:
    raise TreadleError(f"a tensor of {dtype} and shape {shape} holds {has}", where, needs)


def _external(
    tensor: TensorProto,
    folder: Path | None,
    where: str,
    dtype: np.dtype[np.generic],
    shape: tuple[int, ...],
    nbytes: int,
) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _external_path(entries.get("location", ""), folder, where)
    offset = _number(entries, "offset", 0, where)
    length = _number(entries, "length", nbytes, where)
    if length != nbytes:
        _fail_size(where, dtype, shape, f"{length} bytes of external data", f"{nbytes} bytes")
    available = path.stat().st_size
    if offset + length > available:
        span = f"{offset} to {offset + length}"
        message = f"external data '{path.name}' has {available} bytes, the tensor needs bytes {span}"
        raise TreadleError(message, where, "the complete file that was saved with the model")
    if nbytes == 0:
        return np.zeros(shape, dtype)
    mapped = np.memmap(path, np.uint8, "r", offset=offset, shape=(nbytes,))
    return np.asarray(mapped).view(dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)


def _external_path(location: str, folder: Path | None, where: str) -> Path:
    """The file that a location names; TreadleError unless it is a file inside `folder`, links resolved."""
    if folder is None:
        raise TreadleError(
            f"external data '{location}' of a model given as bytes", where, "the path of the model's file"
        )
    root = folder.resolve()
    path = root
    try:
        path = (root / location).resolve()
        inside = bool(location) and not Path(location).is_absolute() and path.is_relative_to(root)
        exists = path.is_file()
    except (OSError, ValueError):
        inside = exists = False
    if not inside:
        message = f"external data path {location!r} leaves the model's folder"
        raise TreadleError(message, where, f"a relative path to a file inside {root}")
    if not exists:
        raise TreadleError(f"external data file '{location}' is missing", where, f"that file inside {root}")
    return path


def _number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise TreadleError(f"external data has {key} {text!r}", where, "a whole number from 0 upwards")
    return int(text)


__all__ = ["DTYPES", "SUPPORTED_TYPES", "Array", "dtype_of", "to_array"]
