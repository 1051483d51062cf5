"""The GPU's driver through cuda-bindings, which come as wheels and are there for NVRTC anyway."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from treadle.artifact.manifest import BufferMap
from treadle.backends.cuda.driver import BoundLaunch
from treadle.backends.cuda.stream_work import NON_BLOCKING, Arguments, StreamWork
from treadle.errors import TreadleError

# Calls of the NVIDIA driver through cuda-bindings: the one module that loads them.

PLACE = "cuda driver"
WHEEL = "pip install 'cuda-bindings==13.0.*'"


def are_installed() -> bool:
    """Whether cuda-bindings can be imported; says nothing of a driver."""
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except ModuleNotFoundError:  # no package `cuda` at all
        return False


def load() -> Any:
    """The module `cuda.bindings.driver`. TreadleError where it is not installed."""
    if not are_installed():
        raise TreadleError("cuda-bindings are not installed", where=PLACE, accepted=WHEEL)
    return importlib.import_module("cuda.bindings.driver")


def call(doing: str, function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
    """What a function of the driver returns beside its status: nothing, a value, or a tuple.

    TreadleError that names `doing`, the function and the driver's own words where the status is not 0, and where
    the driver's library cannot be loaded.
    """
    try:
        status, *values = function(*arguments)
    except RuntimeError as error:  # the first call loads the library
        reason = str(error).splitlines()[0]
        message = f"the NVIDIA driver cannot be loaded ({reason})"
        raise TreadleError(message, where=PLACE, accepted="a machine with libcuda.so.1") from error
    if status.value != 0:
        name = getattr(function, "__name__", "the driver").split("_")[0]
        raise TreadleError(f"the GPU failed: {name} failed: {_words(status)}", where=doing)
    return values[0] if len(values) == 1 else tuple(values)


def _words(status: Any) -> str:
    """The driver's description of a status, such as `out of memory`."""
    asked, text = load().cuGetErrorString(status)
    return text.decode() if asked.value == 0 and text else str(status.name)


_LAUNCHING = "launching a kernel"


class _Function:
    """A kernel whose parameters are addresses and tensor maps, and the memory from which a launch takes them."""

    def __init__(self, function: Any, num_arguments: int, maps: Sequence[BufferMap]) -> None:
        self.function = function
        self.arguments = Arguments(num_arguments, maps)


class BindingsDriver(StreamWork):
    """A `Device` on cuda-bindings. It shares the GPU's primary context, which is current only during a call.

    Raises `TreadleError` when cuda-bindings, the NVIDIA driver or the device is absent.
    """

    def __init__(self, device: int = 0) -> None:
        super().__init__()
        self._cuda = load()
        self._context: Any = None
        call(PLACE, self._cuda.cuInit, 0)
        count = call(PLACE, self._cuda.cuDeviceGetCount)
        if not 0 <= device < count:
            raise TreadleError(f"no GPU number {device}", where=PLACE, accepted=f"0 to {count - 1}")
        self._device = call(PLACE, self._cuda.cuDeviceGet, device)
        self._context = call(PLACE, self._cuda.cuDevicePrimaryCtxRetain, self._device)
        self._allocations: set[int] = set()
        self._modules: list[Any] = []
        doing = "creating a stream"
        with self.current(doing):
            self._stream, self._recording = (call(doing, self._cuda.cuStreamCreate, NON_BLOCKING) for _ in range(2))
        self.number, self.stream_handle, self.recording_handle = device, int(self._stream), int(self._recording)

    @property
    def capability(self) -> tuple[int, int]:
        """See `Device`."""
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    @property
    def device_name(self) -> str:
        """See `Device`."""
        name: bytes = call(PLACE, self._cuda.cuDeviceGetName, 128, self._device)
        return name.split(b"\0")[0].decode()

    @property
    def cuda_version(self) -> tuple[int, int]:
        """See `Device`."""
        version = int(call(PLACE, self._cuda.cuDriverGetVersion))
        return version // 1000, version % 1000 // 10

    def attribute(self, name: str) -> int:
        """See `Device`."""
        which = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(PLACE, self._cuda.cuDeviceGetAttribute, which, self._device))

    def memory(self) -> tuple[int, int]:
        """See `Device`."""
        with self.current("asking for memory"):
            free, total = call("asking for memory", self._cuda.cuMemGetInfo)
        return int(free), int(total)

    def allocate(self, num_bytes: int) -> int:
        """See `Driver`."""
        doing = f"allocating {num_bytes} bytes"
        with self.current(doing):
            address = int(call(doing, self._cuda.cuMemAlloc, max(1, num_bytes)))
        self._allocations.add(address)
        return address

    def free(self, address: int) -> None:
        """See `Driver`. In a context that a kernel has broken the memory is gone, which is no further error, and so it
        is in a driver that was closed."""
        if self._context is None:
            return
        self._allocations.remove(address)
        with self.current("freeing memory"):
            self._cuda.cuMemFree(address)

    def upload(self, address: int, array: np.ndarray) -> None:
        """See `Driver`."""
        doing = f"copying {array.nbytes} bytes to the device"
        if array.nbytes:
            with self.current(doing):
                call(doing, self._cuda.cuMemcpyHtoDAsync, address, array.ctypes.data, array.nbytes, self._stream)

    def download(self, array: np.ndarray, address: int) -> None:
        """See `Driver`."""
        doing = f"copying {array.nbytes} bytes from the device"
        if array.nbytes:
            with self.current(doing):
                call(doing, self._cuda.cuMemcpyDtoHAsync, array.ctypes.data, address, array.nbytes, self._stream)

    def load(
        self, image: bytes, kernel: str, num_arguments: int, dynamic_shared: int, maps: Sequence[BufferMap] = ()
    ) -> object:
        """See `Driver`."""
        doing = f"loading kernel '{kernel}'"
        with self.current(doing):
            module = call(doing, self._cuda.cuModuleLoadData, image)
            self._modules.append(module)
            function = call(doing, self._cuda.cuModuleGetFunction, module, kernel.encode())
            attribute = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call(doing, self._cuda.cuFuncSetAttribute, function, attribute, dynamic_shared)
        return _Function(function, num_arguments, maps)

    def launch(self, launches: Sequence[BoundLaunch]) -> None:
        """See `Driver`."""
        with self.current(_LAUNCHING):
            for each in launches:
                self._launch(each, self._stream)

    def record_launch(self, launch: BoundLaunch) -> None:
        """See `StreamWork`."""
        with self.current(_LAUNCHING):
            self._launch(launch, self._recording)

    def _launch(self, launch: BoundLaunch, stream: Any) -> None:
        function: Any = launch.function
        # The driver copies the values before the call returns.
        function.arguments.set(launch.arguments)
        call(
            _LAUNCHING, self._cuda.cuLaunchKernel, function.function, *launch.grid, *launch.block,
            launch.dynamic_shared, stream, 0, function.arguments.extra,
        )  # fmt: skip

    def record(self) -> object:
        """See `Driver`."""
        doing = "recording an event"
        with self.current(doing):
            event = call(doing, self._cuda.cuEventCreate, 0)
            call(doing, self._cuda.cuEventRecord, event, self._stream)
        return _Event(event, self)

    def seconds_between(self, start: Any, end: Any) -> float:
        """See `Driver`."""
        doing = "waiting for an event"
        with self.current(doing):
            call(doing, self._cuda.cuEventSynchronize, end.event)
            return float(call(doing, self._cuda.cuEventElapsedTime, start.event, end.event)) * 1e-3

    def synchronize(self) -> None:
        """See `Driver`."""
        doing = "waiting for the device"
        with self.current(doing):
            call(doing, self._cuda.cuStreamSynchronize, self._stream)

    def close(self) -> None:
        """See `Driver`. Gives back as much as a context that a kernel has broken still allows."""
        if self._context is None:
            return
        context, self._context = self._context, None
        self._cuda.cuCtxPushCurrent(context)
        self.give_back()
        for address in self._allocations:
            self._cuda.cuMemFree(address)
        for module in self._modules:
            self._cuda.cuModuleUnload(module)
        self._cuda.cuStreamDestroy(self._stream)
        self._cuda.cuStreamDestroy(self._recording)
        self._cuda.cuCtxPopCurrent()
        self._allocations.clear()
        self._modules.clear()
        call("closing", self._cuda.cuDevicePrimaryCtxRelease, self._device)

    @contextmanager
    def current(self, doing: str) -> Generator[None]:
        """See `Device`."""
        if self._context is None:
            raise TreadleError("the driver was closed", where=doing)
        call(doing, self._cuda.cuCtxPushCurrent, self._context)
        try:
            yield
        finally:
            self._cuda.cuCtxPopCurrent()

    def destroy(self, event: object) -> None:
        """Gives an event back, if the driver is still open."""
        if self._context is None:
            return
        with self.current("giving an event back"):
            self._cuda.cuEventDestroy(event)


class _Event:
    """An event that goes back to the driver with its last reference: a benchmark records thousands."""

    def __init__(self, event: object, driver: BindingsDriver) -> None:
        self.event = event
        self._driver = driver

    def __del__(self) -> None:
        self._driver.destroy(self.event)
