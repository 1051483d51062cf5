"""PyTorch's tensors and types as NumPy's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from treadle.errors import TreadleError
from treadle.frontends.common.arrays import Array

DTYPES: dict[torch.dtype, np.dtype[np.generic]] = {
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.bool: np.dtype(np.bool_),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
}
"""The element types that are supported."""

_TORCH = {dtype: own for own, dtype in DTYPES.items()}


def dtype_of(dtype: torch.dtype, where: str) -> np.dtype[np.generic]:
    """NumPy's type; TreadleError for one that tensors of Treadle do not hold."""
    if dtype not in DTYPES:
        raise TreadleError(f"element type {dtype} is not supported", where, ", ".join(map(str, DTYPES)))
    return DTYPES[dtype]


def array_of(tensor: torch.Tensor, where: str) -> Array:
    """A tensor as an array that shares its memory, whatever its strides are.

    TreadleError: an unsupported element type or layout, and a tensor that is not in the CPU's memory.
    """
    dtype = dtype_of(tensor.dtype, where)
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise TreadleError(f"a tensor on {tensor.device} of layout {tensor.layout}", where, "dense tensors on the CPU")
    plain = tensor.detach().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return plain.view(torch.int16).numpy().view(dtype)
    return plain.numpy()


def tensor_of(array: Array) -> torch.Tensor:
    """An array as a tensor that shares its memory, if that may be written."""
    own = _TORCH[array.dtype]
    writeable = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
    if own == torch.bfloat16:
        return torch.from_numpy(writeable.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(writeable)


__all__ = ["DTYPES", "array_of", "dtype_of", "tensor_of"]
