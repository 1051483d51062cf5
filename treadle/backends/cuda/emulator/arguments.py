"""A launch's arguments: checked against the kernel's parameters, and converted for the runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.backends.cuda.emulator.native import NativeBuffer, NativeParameter, NativePointer, ParameterKind
from treadle.errors import TreadleError

_DTYPES: dict[tuple[ParameterKind, int], tuple[str, ...]] = {
    (ParameterKind.SIGNED, 1): ("int8",),
    (ParameterKind.SIGNED, 2): ("int16",),
    (ParameterKind.SIGNED, 4): ("int32",),
    (ParameterKind.SIGNED, 8): ("int64",),
    (ParameterKind.UNSIGNED, 1): (
        "uint8", "int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
        "float8_e5m2fnuz", "float8_e8m0fnu",
    ),
    (ParameterKind.UNSIGNED, 2): ("uint16",),
    (ParameterKind.UNSIGNED, 4): ("uint32",),
    (ParameterKind.UNSIGNED, 8): ("uint64",),
    (ParameterKind.FLOAT, 2): ("float16", "uint16"),
    (ParameterKind.FLOAT, 4): ("float32",),
    (ParameterKind.FLOAT, 8): ("float64",),
    (ParameterKind.BFLOAT, 2): ("bfloat16", "uint16"),
    (ParameterKind.BOOL, 1): ("bool",),
}  # fmt: skip


@dataclass(frozen=True)
class Named:
    """A kernel's parameter with its name in the text."""

    name: str
    native: NativeParameter

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The NumPy types that fit; empty for structures and `void`, where any does."""
        return _DTYPES.get((ParameterKind(self.native.kind), int(self.native.bytes)), ())


@dataclass(frozen=True)
class Buffer:
    """Device memory that arguments point into."""

    name: str
    itemsize: int
    address: int
    bytes: int
    read_only: bool
    floats: bool
    element: int
    """Bytes of an element by the kernel's parameter type; 0 where that is unknown."""


class Arguments:
    """The arguments of one launch; keeps the arrays alive that they point to."""

    def __init__(self, kernel: str, parameters: Sequence[Named], args: Sequence[object]):
        """Raises TreadleError for a wrong number of arguments, and for the first one that does not fit."""
        if len(args) != len(parameters):
            names = ", ".join(parameter.name for parameter in parameters) or "no arguments"
            raise TreadleError(f"got {len(args)} arguments, expected {len(parameters)}", f"kernel '{kernel}'", names)
        self._kept: list[object] = []
        arrays: list[tuple[int, Named, np.ndarray[Any, Any]]] = []
        self.values = (ctypes.c_void_p * max(1, len(args)))()
        for index, (parameter, value) in enumerate(zip(parameters, args, strict=True)):
            where = f"argument '{parameter.name}' of kernel '{kernel}'"
            if parameter.native.pointer:
                arrays.append((index, parameter, _checked_array(where, parameter, value)))
                data = ctypes.create_string_buffer(8)
            else:
                data = ctypes.create_string_buffer(_scalar_bytes(where, parameter, value), 64)
            self._kept += [value, data]
            self.values[index] = ctypes.addressof(data)
        self.buffers = _merged(arrays)
        self.native_buffers = (NativeBuffer * max(1, len(self.buffers)))(*(_native(buffer) for buffer in self.buffers))
        self.num_pointers = len(arrays)
        self.pointers = (NativePointer * max(1, len(arrays)))(*(self._pointer(index, a) for index, _, a in arrays))

    def _pointer(self, index: int, array: np.ndarray[Any, Any]) -> NativePointer:
        address = array.ctypes.data
        for number, buffer in enumerate(self.buffers):
            if buffer.address <= address and address + array.nbytes <= buffer.address + buffer.bytes:
                return NativePointer(index, number, address - buffer.address)
        raise AssertionError("every array is part of a buffer")


def _native(buffer: Buffer) -> NativeBuffer:
    granule = buffer.itemsize if buffer.itemsize in (1, 2) else 4
    return NativeBuffer(buffer.address, buffer.bytes, granule, buffer.read_only, buffer.floats, buffer.element)


def _merged(arrays: Sequence[tuple[int, Named, np.ndarray[Any, Any]]]) -> list[Buffer]:
    """One buffer for each array; arrays that overlap share one, by address."""
    buffers: list[Buffer] = []
    for _, parameter, array in sorted(arrays, key=lambda entry: entry[2].ctypes.data):
        start, size = array.ctypes.data, array.nbytes
        read_only, kind = bool(parameter.native.constant), ParameterKind(parameter.native.kind)
        floats, element = kind in (ParameterKind.FLOAT, ParameterKind.BFLOAT), int(parameter.native.bytes)
        if kind is ParameterKind.OTHER:
            element = 0
        last = buffers[-1] if buffers else None
        if last is None or start >= last.address + last.bytes:
            buffers.append(Buffer(parameter.name, array.itemsize, start, size, read_only, floats, element))
            continue
        extent = max(last.bytes, start + size - last.address)
        itemsize = min(last.itemsize, array.itemsize)
        same = (last.floats, last.element) == (floats, element)
        both_read = last.read_only and read_only
        known = element if same else 0
        buffers[-1] = Buffer(last.name, itemsize, last.address, extent, both_read, floats, known)
    return buffers


def _checked_array(where: str, parameter: Named, value: object) -> np.ndarray[Any, Any]:
    wanted = parameter.dtypes
    accepted = f"a C-contiguous NumPy array of {' or '.join(wanted) or 'any type'}"
    if not isinstance(value, np.ndarray):
        raise TreadleError(f"got {type(value).__name__} for a pointer", where, accepted)
    if value.dtype.hasobject or not value.dtype.isnative or (wanted and value.dtype.name not in wanted):
        raise TreadleError(f"got an array of {value.dtype}", where, accepted)
    if not value.flags.c_contiguous:
        raise TreadleError("got an array that is not contiguous", where, accepted)
    if not parameter.native.constant and not value.flags.writeable:
        raise TreadleError("got a read-only array for a pointer that is not const", where, f"{accepted}, writable")
    return value


def _scalar_bytes(where: str, parameter: Named, value: object) -> bytes:
    if not parameter.dtypes:
        raw = value if isinstance(value, bytes) else value.tobytes() if isinstance(value, np.generic) else None
        if raw is None or len(raw) != parameter.native.bytes:
            raise TreadleError(f"got {value!r} for a structure", where, f"{parameter.native.bytes} bytes")
        return raw
    name = parameter.dtypes[-1] if parameter.native.kind == ParameterKind.BFLOAT else parameter.dtypes[0]
    dtype = np.dtype(name)
    if isinstance(value, np.ndarray):
        raise TreadleError(f"got an array of shape {value.shape}", where, f"one value of {name}")
    if not isinstance(value, bool | int | float | np.generic):
        raise TreadleError(f"got {type(value).__name__}", where, f"one value of {name}")
    if dtype.kind in "iu" and (isinstance(value, float | np.floating) or not _in_range(int(value), dtype)):
        raise TreadleError(f"got {value!r}", where, f"one value of {name}")
    if dtype.kind == "b" and value not in (0, 1):
        raise TreadleError(f"got {value!r}", where, "True or False")
    return np.asarray(value).astype(dtype).tobytes()


def _in_range(value: int, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return int(limits.min) <= value <= int(limits.max)
