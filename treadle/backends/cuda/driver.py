"""The interface to a GPU's driver that the executor, the tests and the benchmarks use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from treadle.artifact.manifest import BufferMap
from treadle.errors import TreadleError

Shape3 = tuple[int, int, int]


@dataclass(frozen=True)
class BoundLaunch:
    """A launch that is ready to be queued: `function` is from `Driver.load`, arguments are device addresses."""

    function: object
    grid: Shape3
    block: Shape3
    arguments: tuple[int, ...]
    dynamic_shared: int = 0
    """Bytes."""
    maps: tuple[BufferMap, ...] = ()
    """Tensor maps of buffers that are arguments; the kernel takes them behind these."""


class LaunchGraph(Protocol):
    """Launches that are queued as one. Close it before the driver."""

    def launch(self, times: int = 1) -> None:
        """Queues all launches, `times` times in a row."""
        ...

    def update(self, position: int, arguments: Sequence[int]) -> None:
        """Changes the arguments of one of the launches, by its number, for later launches of the graph."""
        ...

    def close(self) -> None:
        """Gives the graph back; it cannot be launched afterwards."""
        ...


LEGACY_STREAM = 1
"""The handle of CUDA's legacy default stream, as DLPack and `__cuda_array_interface__` number it, too."""
PER_THREAD_STREAM = 2
"""That of the default stream of whichever thread uses it."""


class Driver(Protocol):
    """What the executor asks of a device. Addresses are integers; all work is queued on one stream, in order.

    Every method raises `TreadleError` when the device or its driver fails.
    """

    @property
    def number(self) -> int:
        """Which GPU of the machine it is, from 0."""
        ...

    @property
    def stream_handle(self) -> int:
        """The `CUstream` on which all work is queued, for other bindings to the driver."""
        ...

    def allocate(self, num_bytes: int) -> int:
        """The address of `num_bytes` of new device memory, aligned to 256 bytes."""
        ...

    def free(self, address: int) -> None:
        """Gives back what `allocate` returned."""
        ...

    def upload(self, address: int, array: np.ndarray) -> None:
        """Queues a copy of a contiguous array to the device; `array` must live until `synchronize`."""
        ...

    def download(self, array: np.ndarray, address: int) -> None:
        """Queues a copy from the device into a contiguous array, which is filled at `synchronize`."""
        ...

    def load(
        self, image: bytes, kernel: str, num_arguments: int, dynamic_shared: int, maps: Sequence[BufferMap] = ()
    ) -> object:
        """The function `kernel` of a cubin, ready for launches with so many pointers, and maps of some of them."""
        ...

    def launch(self, launches: Sequence[BoundLaunch]) -> None:
        """Queues launches."""
        ...

    def capture(self, launches: Sequence[BoundLaunch]) -> LaunchGraph:
        """The launches recorded as one CUDA graph; nothing runs until it is launched."""
        ...

    def allocate_host(self, num_bytes: int) -> np.ndarray:
        """Pinned memory of the host as bytes, at least one: copies from and to it are queued without waiting."""
        ...

    def free_host(self, array: np.ndarray) -> None:
        """Gives back what `allocate_host` returned, which no queued copy uses any more."""
        ...

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Queues a copy on the device."""
        ...

    def copy_rows(self, target: int, source: int, pitches: tuple[int, int], width: int, rows: int) -> None:
        """Queues a copy on the device of `rows` rows of `width` bytes, which begin `pitches` bytes after one another,
        at the target and at the source."""
        ...

    def fill(self, target: int, word: int, count: int) -> None:
        """Queues `count` writes of a word of 32 bits, one behind the other."""
        ...

    def order(self, first: int, then: int) -> None:
        """What is queued later on the stream `then` waits for what is queued on `first` now; the host does not."""
        ...

    def is_capturing(self, stream: int) -> bool:
        """Whether a stream's work is being recorded as a graph."""
        ...

    def device_of(self, pointer: int) -> int:
        """The number of the GPU on which an address lies."""
        ...

    def finish(self) -> None:
        """Waits until all work of the device is done, of all streams."""
        ...

    def check(self) -> None:
        """Raises `TreadleError` if the device is gone, with all memory that was allocated for it, the host's, too."""
        ...

    def mark(self) -> object:
        """The end of what is queued now."""
        ...

    def is_reached(self, mark: Any) -> bool:
        """Whether all is done that was queued before a mark."""
        ...

    def wait_for(self, mark: Any) -> None:
        """Waits until all is done that was queued before a mark."""
        ...

    def record(self) -> object:
        """Queues an event with a time."""
        ...

    def seconds_between(self, start: object, end: object) -> float:
        """Time from one event to another, after waiting for the latter."""
        ...

    def synchronize(self) -> None:
        """Waits until all that was queued is done."""
        ...

    def close(self) -> None:
        """Gives back all memory, functions and the context."""
        ...


class Device(Driver, Protocol):
    """A `Driver` of a real GPU, and what else can be asked of one."""

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability, as `Target.for_capability` takes it."""
        ...

    @property
    def device_name(self) -> str:
        """The product's name."""
        ...

    @property
    def cuda_version(self) -> tuple[int, int]:
        """The newest CUDA version (major, minor) whose cubins the installed driver loads."""
        ...

    def attribute(self, name: str) -> int:
        """A limit of the device by its name in `CUdevice_attribute` without the prefix: `"WARP_SIZE"`."""
        ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of device memory."""
        ...

    def current(self, doing: str) -> AbstractContextManager[object]:
        """Makes the device's context current on this thread; `doing` is named by an error."""
        ...


def check_toolkit(device: Device, toolkit: str) -> None:
    """Raises `TreadleError` where the device's driver is too old for cubins of NVRTC `toolkit`, such as `"13.0"`.

    Cubins of one major version of CUDA load on every driver of that version (CUDA Compatibility, minor versions).
    """
    newest, (major, _, minor) = device.cuda_version, toolkit.partition(".")
    if newest[0] >= int(major):
        return
    raise TreadleError(
        f"the installed driver loads cubins of CUDA {newest[0]}.{newest[1]} and older, NVRTC {toolkit} makes newer",
        where=f"GPU {device.device_name}",
        accepted=f"a driver for CUDA {major}.{minor} (the 580 branch for 13.0), or NVRTC {newest[0]}.x",
    )
