"""The GPU's driver through pycuda: the one module that loads it."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.artifact.manifest import BufferMap
from treadle.backends.cuda.driver import BoundLaunch
from treadle.backends.cuda.stream_work import MAP_ALIGNMENT, NON_BLOCKING, StreamWork, encode, map_places
from treadle.errors import TreadleError
from treadle.target.tensor_map import MAP_BYTES

_LAUNCHING = "launching a kernel"


@dataclass(frozen=True)
class _Function:
    """A prepared pycuda function; the module must live as long."""

    module: Any
    function: Any


def _encoded(launch: BoundLaunch) -> list[bytes]:
    """The tensor maps of a launch, by value."""
    memory = (ctypes.c_uint8 * (MAP_BYTES + MAP_ALIGNMENT))()
    target = ctypes.addressof(memory) + -ctypes.addressof(memory) % MAP_ALIGNMENT
    found: list[bytes] = []
    for each in launch.maps:
        encode(each.map.encoded(), launch.arguments[each.argument], target)
        found.append(ctypes.string_at(target, MAP_BYTES))
    return found


class PycudaDriver(StreamWork):
    """A `Device` on pycuda. It shares the device's primary context, which is current only during a call.

    Raises `TreadleError` when pycuda, the NVIDIA driver or the device is absent.
    """

    def __init__(self, device: int = 0) -> None:
        super().__init__()
        self._cuda = _pycuda_driver()
        try:
            self._cuda.init()
            if not 0 <= device < self._cuda.Device.count():
                message, accepted = f"no GPU number {device}", f"0 to {self._cuda.Device.count() - 1}"
                raise TreadleError(message, where="cuda driver", accepted=accepted)
            self._device = self._cuda.Device(device)
            self._context = self._device.retain_primary_context()
        except self._cuda.Error as error:
            raise TreadleError(f"no GPU can be used: {error}", where="cuda driver") from error
        self._allocations: dict[int, Any] = {}
        with self.current("creating a stream"):
            self._stream: Any = self._cuda.Stream(NON_BLOCKING)
            self._recording: Any = self._cuda.Stream(NON_BLOCKING)
        self.number, self.stream_handle = device, int(self._stream.handle)
        self.recording_handle = int(self._recording.handle)

    @property
    def capability(self) -> tuple[int, int]:
        """See `Device`."""
        major, minor = self._device.compute_capability()
        return int(major), int(minor)

    @property
    def device_name(self) -> str:
        """See `Device`."""
        return str(self._device.name())

    @property
    def cuda_version(self) -> tuple[int, int]:
        """See `Device`."""
        version = int(self._cuda.get_driver_version())
        return version // 1000, version % 1000 // 10

    def attribute(self, name: str) -> int:
        """See `Device`."""
        return int(self._device.get_attribute(getattr(self._cuda.device_attribute, name)))

    def memory(self) -> tuple[int, int]:
        """See `Device`."""
        with self.current("asking for memory"):
            free, total = self._cuda.mem_get_info()
        return int(free), int(total)

    def allocate(self, num_bytes: int) -> int:
        """See `Driver`."""
        with self.current(f"allocating {num_bytes} bytes"):
            allocation = self._cuda.mem_alloc(max(1, num_bytes))
        address = int(allocation)
        self._allocations[address] = allocation
        return address

    def free(self, address: int) -> None:
        """See `Driver`. In a driver that was closed the memory is gone."""
        if self._context is None:
            return
        with self.current("freeing memory"):
            self._allocations.pop(address).free()

    def upload(self, address: int, array: np.ndarray) -> None:
        """See `Driver`."""
        if array.nbytes == 0:
            return
        with self.current(f"copying {array.nbytes} bytes to the device"):
            self._cuda.memcpy_htod_async(address, array, self._stream)

    def download(self, array: np.ndarray, address: int) -> None:
        """See `Driver`."""
        if array.nbytes == 0:
            return
        with self.current(f"copying {array.nbytes} bytes from the device"):
            self._cuda.memcpy_dtoh_async(array, address, self._stream)

    def load(
        self, image: bytes, kernel: str, num_arguments: int, dynamic_shared: int, maps: Sequence[BufferMap] = ()
    ) -> object:
        """See `Driver`."""
        with self.current(f"loading kernel '{kernel}'"):
            module = self._cuda.module_from_buffer(image)
            function = module.get_function(kernel)
            attribute = self._cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            function.set_attribute(attribute, dynamic_shared)
            gap = map_places(num_arguments, maps)[0] - 8 * num_arguments if maps else 0
            function.prepare(["P"] * num_arguments + [f"{gap}x"] * (gap > 0) + [f"{MAP_BYTES}s"] * len(maps))
        return _Function(module, function)

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
        prepared: Any = launch.function
        prepared.function.prepared_async_call(
            launch.grid, launch.block, stream, *launch.arguments, *_encoded(launch), shared_size=launch.dynamic_shared
        )

    def record(self) -> object:
        """See `Driver`."""
        with self.current("recording an event"):
            event = self._cuda.Event()
            event.record(self._stream)
        return event

    def seconds_between(self, start: Any, end: Any) -> float:
        """See `Driver`."""
        with self.current("waiting for an event"):
            end.synchronize()
            return float(start.time_till(end)) * 1e-3

    def synchronize(self) -> None:
        """See `Driver`."""
        with self.current("waiting for the device"):
            self._stream.synchronize()

    def close(self) -> None:
        """See `Driver`."""
        if self._context is None:
            return
        with self.current("closing"):
            self.give_back()
            for allocation in self._allocations.values():
                allocation.free()
            self._allocations.clear()
            self._stream = self._recording = None
        self._context.detach()
        self._context = None

    @contextmanager
    def current(self, doing: str) -> Generator[None]:
        """See `Device`; pycuda's errors become Treadle's, which say what was being done."""
        if self._context is None:
            raise TreadleError("the driver was closed", where=doing)
        self._context.push()
        try:
            yield
        except self._cuda.Error as error:
            raise TreadleError(f"the GPU failed: {error}", where=doing) from error
        finally:
            self._cuda.Context.pop()


def _pycuda_driver() -> Any:
    """pycuda's driver module, which cannot even be imported where there is no libcuda."""
    if importlib.util.find_spec("pycuda") is None:
        raise TreadleError(
            "pycuda is not installed", where="cuda driver", accepted="pip install pycuda, where CUDA's headers are"
        )
    try:
        # Some builds of pycuda are not linked to the driver's library: it has to be there before them.
        with suppress(OSError):
            ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        # For some unusable drivers pycuda warns before it raises; the error says it all, in one line.
        with warnings.catch_warnings(action="ignore"):
            return importlib.import_module("pycuda.driver")
    except ImportError as error:
        message = f"the NVIDIA driver cannot be loaded ({error})"
        raise TreadleError(message, where="cuda driver", accepted="a machine with libcuda.so.1") from error
