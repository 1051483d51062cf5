"""Arrays in the memory of a GPU: a program's results, and what other libraries lend by DLPack or by
`__cuda_array_interface__`.

Sources: dlpack.h of DLPack 1.1 (https://dmlc.github.io/dlpack), its Python specification, and version 3 of the CUDA
Array Interface (https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from treadle.artifact.manifest import element_type
from treadle.backends.cuda.device_memory import Block
from treadle.backends.cuda.driver import LEGACY_STREAM, Driver
from treadle.backends.dlpack import TYPES, HasDLPack, capsule_pointer
from treadle.errors import TreadleError

_CUDA = 2
"""kDLCUDA."""
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""DLDataTypeCode by NumPy's kind."""
_READ_ONLY = 1
"""DLPACK_FLAG_BITMASK_READ_ONLY."""
_CONTIGUOUS = "a C-contiguous array, such as x.contiguous() of PyTorch or cupy.ascontiguousarray(x)"


class LentArray:
    """An array on a GPU, C-contiguous.

    pointer:   the address of its first element
    device:    the number of the GPU
    owner:     what keeps the memory alive
    stream:    behind whose work its elements may be read; None: behind nothing
    read_only: its owner lets nobody write it
    """

    def __init__(
        self, pointer: int, shape: Sequence[int], dtype: np.dtype[Any], device: int, owner: object,
        stream: int | None = None, read_only: bool = False,
    ) -> None:  # fmt: skip
        self.pointer, self.shape, self.dtype, self.device = pointer, tuple(shape), dtype, device
        self.owner, self.stream, self.read_only = owner, stream, read_only

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return prod(self.shape) * self.dtype.itemsize


class DeviceArray(LentArray):
    """A result of a model on a GPU: row-major, in memory of the model's program, or of a call's `out`.

    Other libraries take it by `__dlpack__` (`torch.from_dlpack`) or `__cuda_array_interface__` (CuPy, Numba), with the
    waits that these protocols ask for, and other models as an input; `numpy()` copies it to the host. Its memory is
    used again once the array and all views of it are gone: work on other streams than those must be done by then.
    """

    def __init__(self, block: Block, shape: Sequence[int], dtype: np.dtype[Any], stream: int | None) -> None:
        """An array in a block, which is complete behind the program's stream, and behind the caller's `stream`."""
        super().__init__(block.address, shape, dtype, block.driver.number, block, block.driver.stream_handle)
        self._block, self._callers = block, stream
        if stream is not None:
            block.users.add(stream)

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"DeviceArray({self.dtype}[{shape}] on cuda:{self.device} at {self.pointer:#x})"

    def __array__(self, *asked: object, **named: object) -> NoReturn:
        """TypeError: NumPy asks where a copy may be by mistake."""
        raise TypeError("an array on a GPU is copied to the host by its method numpy()")

    def numpy(self) -> NDArray[Any]:
        """A copy on the host, once the array is complete; TreadleError if the device fails."""
        found, driver = np.empty(self.shape, self.dtype), self._block.driver
        driver.download(found, self.pointer)
        driver.synchronize()
        return found

    def item(self) -> Any:
        """The only element, on the host; ValueError where there are more."""
        return self.numpy().item()

    def cropped(self, bounds: Sequence[int], extents: Sequence[int], shape: Sequence[int]) -> DeviceArray:
        """A new array of `shape` with the elements that lie within `extents` of this one as an array of `bounds`."""
        if tuple(bounds) == tuple(extents):
            return DeviceArray(self._block, shape, self.dtype, self._callers)
        driver = self._block.driver
        block = self._block.memory.take(prod(extents) * self.dtype.itemsize, self._callers)
        copy_box(driver, (block.address, extents), (self.pointer, bounds), extents, self.dtype.itemsize)
        self._hand_over()
        return DeviceArray(block, shape, self.dtype, self._callers)

    def write_to(self, target: LentArray) -> None:
        """Copies the elements into another array of the device, of the same size."""
        if target.stream is not None:
            self._block.driver.order(target.stream, self._block.driver.stream_handle)
        self._block.driver.copy(target.pointer, self.pointer, self.nbytes)
        self._hand_over()

    def used_on(self, stream: int) -> None:
        """What is queued on a stream reads the array, which may be dropped before it is done."""
        self._block.users.add(stream)

    def _hand_over(self) -> None:
        if self._callers is not None:
            self._block.driver.order(self._block.driver.stream_handle, self._callers)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type of CUDA devices, and the number of the GPU."""
        return _CUDA, self.device

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> object:  # fmt: skip
        """A capsule for a consumer whose work is queued on `stream`: None is CUDA's legacy default stream, -1 asks for
        no wait. BufferError for a copy and for another device."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"an array on cuda:{self.device} is lent as it is: no copy, no other device")
        if stream != -1:
            consumer = LEGACY_STREAM if stream is None else stream
            self._block.driver.order(self._block.driver.stream_handle, consumer)
            self._block.users.add(consumer)
        return _capsule(self, versioned=max_version is not None and max_version[0] >= 1)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Version 3. AttributeError for a type that NumPy lacks, which DLPack has."""
        if self.dtype.kind not in _CODES:
            raise AttributeError(f"the interface has no type {self.dtype}; __dlpack__ has")
        self._block.users.add(LEGACY_STREAM)
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, False), "strides": None,
            "stream": self.stream, "version": 3,
        }  # fmt: skip


def copy_box(
    driver: Driver, target: tuple[int, Sequence[int]], source: tuple[int, Sequence[int]], extents: Sequence[int],
    width: int,
) -> None:  # fmt: skip
    """Queues the copy of the elements within `extents`, each of `width` bytes, from an array to another of the same
    rank: each by its address and its row-major shape."""
    (to, to_shape), (of, of_shape) = target, source
    inner = [prod([*shape[axis + 1 :], width]) for shape in (to_shape, of_shape) for axis in range(len(extents))]
    to_strides, of_strides = inner[: len(extents)], inner[len(extents) :]
    last = len(extents)
    row = width
    while last and to_strides[last - 1] == of_strides[last - 1] == row:  # whole up to here: one run of memory
        last -= 1
        row *= extents[last]
    rows = extents[last - 1] if last else 1
    pitches = (to_strides[last - 1], of_strides[last - 1]) if last else (row, row)
    for index in product(*map(range, extents[: max(0, last - 1)])):
        begin = [sum(n * stride for n, stride in zip(index, each, strict=False)) for each in (to_strides, of_strides)]
        driver.copy_rows(to + begin[0], of + begin[1], pitches, row, rows)


# What other libraries lend.


def is_on_device(value: object) -> bool:
    """Whether a value is an array in the memory of a GPU, as far as it says so."""
    if isinstance(value, np.ndarray | LentArray):
        return isinstance(value, LentArray)
    if isinstance(value, HasDLPack):
        return int(value.__dlpack_device__()[0]) == _CUDA
    return getattr(value, "__cuda_array_interface__", None) is not None


def lent(value: object, where: str, driver: Driver, stream: int) -> LentArray:
    """The array that a value on a device is, for work that is queued on `stream`.

    TreadleError, which names `where`, for one on another device than the driver's, one that is not contiguous, and one
    that its library does not lend.
    """
    if isinstance(value, LentArray):
        found = value
    elif isinstance(value, HasDLPack):
        _check_device(int(value.__dlpack_device__()[1]), driver, where)
        found = _by_dlpack(value, where, stream)
    else:
        found = _by_interface(value, where, driver)
    _check_device(found.device, driver, where)
    return found


def _check_device(device: int, driver: Driver, where: str) -> None:
    if device != driver.number:
        accepted = f"one on cuda:{driver.number}, where the model is; or the model with device={device}"
        raise TreadleError(f"the array is on cuda:{device}", where, accepted)


def _by_dlpack(value: Any, where: str, stream: int) -> LentArray:
    try:
        try:
            capsule = value.__dlpack__(stream=stream, max_version=(1, 1))
        except TypeError:  # a library of DLPack before 1.0
            capsule = value.__dlpack__(stream=stream)
        return _of_capsule(capsule, where)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        accepted = "a strided array that its library exports, such as x.detach() of PyTorch"
        raise TreadleError(f"DLPack: {error}", where, accepted) from error


def _of_capsule(capsule: object, where: str) -> LentArray:
    """The array of a capsule, which keeps its tensor alive as long as it is not used up."""
    flags = 0
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise BufferError(f"the capsule is of version {managed.major}, and 1 is known")
        flags, tensor = managed.flags, managed.tensor
    else:
        tensor = _Managed.from_address(capsule_pointer(capsule, b"dltensor")).tensor
    if tensor.device_type != _CUDA or tensor.lanes != 1:
        raise BufferError(f"a tensor of device type {tensor.device_type} with {tensor.lanes} lanes")
    shape = tuple(tensor.shape[n] for n in range(tensor.ndim))
    strides = tuple(tensor.strides[n] for n in range(tensor.ndim)) if tensor.strides else None
    _check_contiguous(shape, strides, where)
    pointer = int(tensor.data or 0) + tensor.offset
    dtype = _dtype(tensor.code, tensor.bits)
    return LentArray(pointer, shape, dtype, tensor.device_id, capsule, None, bool(flags & _READ_ONLY))


def _dtype(code: int, bits: int) -> np.dtype[Any]:
    if (code, bits) in TYPES:
        return element_type(TYPES[code, bits])
    kind = next((kind for kind, number in _CODES.items() if number == code), None)
    if kind is None or bits % 8:
        raise BufferError(f"the type with code {code} and {bits} bits is unknown")
    return np.dtype(f"{kind}{bits // 8}")


def _by_interface(value: object, where: str, driver: Driver) -> LentArray:
    interface = cast("Mapping[str, Any]", value.__cuda_array_interface__)  # pyright: ignore
    if interface.get("mask") is not None:
        raise TreadleError("the array has a mask", where, "an array without one")
    stream = interface.get("stream") if interface["version"] >= 3 else LEGACY_STREAM
    if stream == 0:
        raise TreadleError("the array names stream 0, which is ambiguous", where, "1 (legacy) or 2 (per thread)")
    pointer, read_only = interface["data"] or (0, False)
    shape, dtype, strides = tuple(interface["shape"]), np.dtype(interface["typestr"]), interface.get("strides")
    if strides is not None and any(stride % dtype.itemsize for stride in strides):
        raise TreadleError(f"the strides are {tuple(strides)} bytes", where, _CONTIGUOUS)
    _check_contiguous(shape, None if strides is None else [each // dtype.itemsize for each in strides], where)
    device = driver.number if 0 in shape else _device_of(int(pointer), where, driver)
    return LentArray(int(pointer), shape, dtype, device, value, stream, bool(read_only))


def _device_of(pointer: int, where: str, driver: Driver) -> int:
    try:
        return driver.device_of(pointer)
    except TreadleError as error:
        message = f"{pointer:#x} is no address of a GPU's memory ({error.message})"
        raise TreadleError(message, where, f"an array on cuda:{driver.number}") from error


def _check_contiguous(shape: Sequence[int], strides: Sequence[int] | None, where: str) -> None:
    if strides is None or 0 in shape:
        return
    wanted = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if any(n != 1 and a != b for n, a, b in zip(shape, strides, wanted, strict=True)):
        raise TreadleError(f"the array of shape {tuple(shape)} has strides {tuple(strides)}", where, _CONTIGUOUS)


# Capsules of DLPack.


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", _Deleter),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


_lent: dict[int, tuple[object, ...]] = {}
"""What capsules need, by the address of their structure, until the consumer's deleter is called."""


@_Deleter
def _delete(address: int) -> None:
    _lent.pop(address, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _end_of_capsule(capsule: int) -> None:
    """A capsule that nobody used up ends its loan itself. It has no references any more, so that it is an address."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _is_valid_address(capsule, name):
            _lent.pop(_pointer_of_address(capsule, name), None)


def _capsule(array: DeviceArray, *, versioned: bool) -> object:
    shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    strides = (ctypes.c_int64 * max(1, array.ndim))(*(prod(array.shape[axis + 1 :]) for axis in range(array.ndim)))
    code, bits = _code(array.dtype)
    tensor = _Tensor(array.pointer, _CUDA, array.device, array.ndim, code, bits, 1, shape, strides, 0)
    managed = _Versioned(1, 0, None, _delete, 0, tensor) if versioned else _Managed(tensor, None, _delete)
    address = ctypes.addressof(managed)
    _lent[address] = (managed, shape, strides, array.owner)
    return _new_capsule(address, _VERSIONED if versioned else _PLAIN, _end_of_capsule)


def _code(dtype: np.dtype[Any]) -> tuple[int, int]:
    known = {name: form for form, name in TYPES.items()}
    if str(dtype) in known:
        return known[str(dtype)]
    return _CODES[dtype.kind], 8 * dtype.itemsize


_PLAIN, _VERSIONED = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"dltensor_versioned")
"""Names that outlive their capsules."""


def _of_python(name: str, result: Any, *arguments: Any) -> Any:
    """A function of Python's interface in C with these types; each caller has its own."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _of_python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_is_valid_address = _of_python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer_of_address = _of_python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_new_capsule = _of_python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


__all__ = ["DeviceArray", "LentArray", "copy_box", "is_on_device", "lent"]
