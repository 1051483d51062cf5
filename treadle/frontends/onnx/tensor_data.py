"""TensorProto to NumPy; sizes are checked before anything is read."""

from __future__ import annotations

import sys
from math import prod

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from treadle.dialects.graph.dtypes import MAX_RANK
from treadle.errors import TreadleError
from treadle.frontends.onnx.external_data import ExternalFiles

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


__all__ = ["DTYPES", "SUPPORTED_TYPES", "Array", "dtype_of", "to_array"]
