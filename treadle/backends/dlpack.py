"""Arrays of other libraries as NumPy's, without copies, by the DLPack protocol (https://dmlc.github.io/dlpack).

NumPy reads the types that it has. Those of `ml_dtypes` (bfloat16, floats of 8 bits) come as unsigned integers of their
width, and are then seen as what they are.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treadle.artifact.manifest import element_type
from treadle.errors import TreadleError

_HOST = (1, 3, 11, 13)
"""Devices whose memory the CPU reads: its own, CUDA's and ROCm's pinned memory, and CUDA's managed memory."""
_DEVICES = {2: "a CUDA device", 4: "an OpenCL device", 7: "a Vulkan device", 8: "a Metal device", 10: "a ROCm device"}
_UNSIGNED = 1
TYPES: dict[tuple[int, int], str] = {
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
"""Types that NumPy lacks, by DLPack's code and bits (dlpack.h, DLDataTypeCode)."""


@runtime_checkable
class HasDLPack(Protocol):
    """An array of any library that lends its memory."""

    def __dlpack__(self) -> object:
        """A capsule with the tensor."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """The kind of the device, and its number."""
        ...


class _Tensor(ctypes.Structure):
    """The beginning of a DLTensor, with which a capsule's DLManagedTensor begins (dlpack.h)."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
    )  # fmt: skip

    code: int
    bits: int
    lanes: int


class _Lent:
    """A capsule that is handed on."""

    def __init__(self, capsule: object, device: tuple[int, int]):
        self._capsule = capsule
        self._device = device

    def __dlpack__(self, **asked: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def as_array(value: ArrayLike | HasDLPack, where: str) -> NDArray[Any]:
    """The value as an array: itself, the memory that its `__dlpack__` lends, or what NumPy makes of it.

    TreadleError, which names `where`, for memory that the CPU cannot read, and for a tensor that its library does not
    lend or NumPy does not take.
    """
    if isinstance(value, np.ndarray) or not isinstance(value, HasDLPack):
        return np.asarray(value)
    kind, _ = value.__dlpack_device__()
    if kind not in _HOST:
        device = _DEVICES.get(int(kind), f"a device of DLPack's type {int(kind)}")
        raise TreadleError(f"the array is on {device}", where, "an array in the CPU's memory")
    try:
        return np.from_dlpack(cast("Any", value))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        array = _of_other_type(value)
        if array is not None:
            return array
        accepted = "a strided array that its library exports, of a type that the model takes"
        raise TreadleError(f"DLPack: {error}", where, accepted) from error


def _of_other_type(value: HasDLPack) -> NDArray[Any] | None:
    """An array of one of `TYPES`; None if it is of another type, or is not lent at all."""
    try:
        capsule = value.__dlpack__()
        address = capsule_pointer(capsule, b"dltensor")
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None
    tensor = _Tensor.from_address(address)
    name = TYPES.get((tensor.code, tensor.bits))
    if name is None or tensor.lanes != 1:
        return None
    tensor.code = _UNSIGNED  # the capsule is ours, and made anew for each call of __dlpack__
    lent = _Lent(capsule, value.__dlpack_device__())
    return np.from_dlpack(cast("Any", lent)).view(element_type(name))


capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.argtypes, capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


__all__ = ["TYPES", "HasDLPack", "as_array", "capsule_pointer"]
