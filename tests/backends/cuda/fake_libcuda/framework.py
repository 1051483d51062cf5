"""A library of tensors on the fake driver, in place of PyTorch or CuPy: with a stream, and memory that it reuses.

It knows the driver's functions alone. Capsules of DLPack are NumPy's, whose address and device are replaced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

CUDA, CPU = 2, 1
POISON = 0x7F
NON_BLOCKING = 1


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def check(function: str, *arguments: object) -> None:
    """Calls a function of the driver that must not fail."""
    status = getattr(_library(), function)(*arguments)
    assert status == 0, f"{function}: {status}"


def calls(*functions: str) -> list[int]:
    """How often each was called since `forget_calls`; HtoD, DtoH and DtoD stand for copies of these kinds."""
    return [_library().treadle_fake_calls(name.encode()) for name in functions]


def forget_calls() -> None:
    """Counts anew."""
    _library().treadle_fake_forget_calls()


def waits() -> int:
    """How often the host waited for the device."""
    names = "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuMemFree_v2"
    return sum(calls(*names))


class Framework:
    """The library on one device. What is queued lies on its stream: 0 is the legacy default stream."""

    def __init__(self, number: int = 0, *, default_stream: bool = False) -> None:
        self.number, self._context = number, ctypes.c_void_p()
        self.memory = list[int]()
        self.sources = list[NDArray[Any]]()  # of copies that are still queued
        self.is_open = True
        check("cuInit", 0)
        check("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), number)
        self.stream = 0 if default_stream else self.new_stream()

    @contextmanager
    def current(self) -> Generator[None]:
        """The device's context."""
        check("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            check("cuCtxPopCurrent_v2", None)

    def new_stream(self) -> int:
        """A stream that waits for nothing by itself."""
        stream = ctypes.c_void_p()
        with self.current():
            check("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        assert stream.value is not None
        return stream.value

    def tensor(self, values: NDArray[Any], kind: type[Tensor] | None = None, offset: int = 0) -> Any:
        """A tensor with these elements, written on the stream, `offset` bytes into its memory."""
        made = (kind or ByInterface)(self, values.shape, values.dtype, values.strides, offset)
        made.write(values)
        return made

    def synchronize(self) -> None:
        """Waits for the stream."""
        with self.current():
            check("cuStreamSynchronize", ctypes.c_void_p(self.stream))

    def order(self, first: int, then: int) -> None:
        """`then` waits for what `first` has queued."""
        event = ctypes.c_void_p()
        with self.current():
            check("cuEventCreate", ctypes.byref(event), 0)
            check("cuEventRecord", event, ctypes.c_void_p(first))
            check("cuStreamWaitEvent", ctypes.c_void_p(then), event, 0)
            check("cuEventDestroy_v2", event)

    def read(self, array: Any, stream: int | None = None) -> NDArray[Any]:
        """What work on a stream (the library's) reads of a row-major array, by its address alone."""
        found = np.zeros(array.shape, array.dtype)
        with self.current():
            handle = ctypes.c_void_p(self.stream if stream is None else stream)
            source = ctypes.c_uint64(array.pointer)
            check(
                "cuMemcpyDtoHAsync_v2",
                ctypes.c_void_p(found.ctypes.data),
                source,
                ctypes.c_size_t(found.nbytes),
                handle,
            )
            check("cuStreamSynchronize", handle)
        return found

    def reset(self) -> None:
        """The device is gone for all who use it."""
        check("cuDevicePrimaryCtxReset_v2", self.number)

    def close(self) -> None:
        """Gives memory and context back; tensors that are left are of no use."""
        self.is_open = False
        with self.current():
            for address in self.memory:
                _library().cuMemFree_v2(ctypes.c_uint64(address))  # gone already, if the device is
        check("cuDevicePrimaryCtxRelease_v2", self.number)


class Tensor:
    """A tensor. Once it is freed, others write its memory, on the library's stream."""

    read_only = False

    def __init__(
        self, framework: Framework, shape: Sequence[int], dtype: np.dtype[Any], strides: Sequence[int], offset: int
    ) -> None:
        self.framework, self.shape, self.dtype, self.strides = framework, tuple(shape), dtype, tuple(strides)
        self.nbytes = int(np.prod(self.shape)) * dtype.itemsize
        memory = ctypes.c_uint64()
        with framework.current():
            check("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(max(1, self.nbytes + offset)))
        framework.memory.append(memory.value)
        self.pointer = memory.value + offset

    def write(self, values: NDArray[Any]) -> None:
        """Queues the copy of the elements, in the order in which they lie in memory."""
        source = np.ascontiguousarray(values.ravel("K"))
        self.framework.sources.append(source)
        with self.framework.current():
            stream, size = ctypes.c_void_p(self.framework.stream), ctypes.c_size_t(source.nbytes)
            address = ctypes.c_void_p(source.ctypes.data)
            check("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.pointer), address, size, stream)

    def poison(self) -> None:
        """What happens to freed memory: other work of the library takes it."""
        with self.framework.current():
            stream, size = ctypes.c_void_p(self.framework.stream), ctypes.c_size_t(self.nbytes)
            check("cuMemsetD8Async", ctypes.c_uint64(self.pointer), ctypes.c_uint8(POISON), size, stream)

    def __del__(self) -> None:
        if self.framework.is_open:
            self.poison()


class ByInterface(Tensor):
    """A tensor of the CUDA array interface, version 3: complete behind its library's stream."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        rows = np.empty(self.shape, self.dtype).strides
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, self.read_only), "version": 3,
            "strides": None if self.strides == rows else self.strides, "stream": self.framework.stream or 1,
        }  # fmt: skip


class ByOldInterface(ByInterface):
    """Version 2, which says nothing of streams."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        interface = {**super().__cuda_array_interface__, "version": 2}
        del interface["stream"]
        return interface


class ByDLPack(Tensor):
    """A tensor of DLPack 1.0: the consumer's stream is made to wait."""

    versioned = True

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.framework.number

    def __dlpack__(self, *, stream: int | None = None, **asked: object) -> object:
        if not self.versioned and asked:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        if stream is not None and stream != -1:
            self.framework.order(self.framework.stream, stream)
        array = np.lib.stride_tricks.as_strided(
            np.empty(self.nbytes, np.uint8).view(self.dtype), self.shape, self.strides
        )
        kept = array.view(_Keeping)
        kept.tensor = self
        kept.flags.writeable = not self.read_only
        capsule = np.ndarray.__dlpack__(kept, **cast("Any", {"max_version": (1, 0)} if self.versioned else {}))
        place = _tensor_of(capsule)
        ctypes.c_uint64.from_address(place).value = self.pointer
        ctypes.c_int32.from_address(place + 8).value, ctypes.c_int32.from_address(place + 12).value = (
            self.__dlpack_device__()
        )
        return capsule


class ByOldDLPack(ByDLPack):
    """A tensor of DLPack before 1.0."""

    versioned = False


class _Keeping(np.ndarray):
    """An array that keeps a tensor."""

    tensor: Tensor


class _Consumed:
    """A capsule of a device as one of the host: the emulator's memory is the process's."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule
        place = _tensor_of(capsule)
        self.device = ctypes.c_int32.from_address(place + 8).value, ctypes.c_int32.from_address(place + 12).value
        ctypes.c_int32.from_address(place + 8).value = CPU

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


def consumed(array: Any, stream: int, **asked: object) -> tuple[NDArray[Any], tuple[int, int]]:
    """What a consumer on a stream gets by DLPack, as NumPy sees the same memory, and the device that is named."""
    lent = _Consumed(array.__dlpack__(stream=stream, **asked))
    return np.from_dlpack(cast("Any", lent)), lent.device


def _tensor_of(capsule: object) -> int:
    """The address of the DLTensor of a capsule; behind version, context, deleter and flags since 1.0."""
    valid, pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    for function in (valid, pointer):
        function.argtypes = [ctypes.py_object, ctypes.c_char_p]
    pointer.restype = ctypes.c_void_p
    if valid(capsule, b"dltensor_versioned"):
        return int(pointer(capsule, b"dltensor_versioned")) + 32
    return int(pointer(capsule, b"dltensor"))
