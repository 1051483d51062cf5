"""A device in numpy: memory is one array, a kernel is a Python function, and every call is written down."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treadle.backends.cuda.driver import BoundLaunch
from treadle.errors import TreadleError

ALIGNMENT = 256

Memory = np.ndarray
Kernel = Callable[..., None]
"""Takes the memory as float32, then the position of each argument in it."""


class FakeDriver:
    """A `Driver` whose cubins name the functions in `kernels`.

    Uploads and downloads happen at `synchronize`, as late as a device may do them, and memory starts as NaN.
    """

    def __init__(self, kernels: Mapping[str, Kernel], capacity: int = 1 << 16) -> None:
        self.kernels = kernels
        self.calls: list[str] = []
        self.live: dict[int, int] = {}
        self._memory = np.full(capacity // 4, np.nan, np.float32)
        self._next = ALIGNMENT
        self._queue: list[Callable[[], None]] = []
        self._clock = 0

    def allocate(self, num_bytes: int) -> int:
        """See `Driver`."""
        address = self._next
        self._next += -(-max(1, num_bytes) // ALIGNMENT) * ALIGNMENT
        if self._next > self._memory.nbytes:
            raise TreadleError("out of memory", where=f"allocating {num_bytes} bytes")
        self.live[address] = num_bytes
        return address

    def free(self, address: int) -> None:
        """See `Driver`."""
        del self.live[address]

    def upload(self, address: int, array: np.ndarray) -> None:
        """See `Driver`."""
        assert array.flags.c_contiguous
        self.calls.append("upload")
        self._queue.append(lambda: self._bytes(address, array.nbytes).__setitem__(..., _raw(array)))

    def download(self, array: np.ndarray, address: int) -> None:
        """See `Driver`."""
        assert array.flags.c_contiguous
        self.calls.append("download")
        self._queue.append(lambda: _raw(array).__setitem__(..., self._bytes(address, array.nbytes)))

    def load(self, image: bytes, kernel: str, num_arguments: int, dynamic_shared: int) -> object:
        """See `Driver`."""
        self.calls.append(f"load {image.decode()} {kernel} {num_arguments} {dynamic_shared}")
        return self.kernels[kernel]

    def launch(self, launches: Sequence[BoundLaunch]) -> None:
        """See `Driver`."""
        for each in launches:
            self.calls.append(f"launch {each.grid} {each.block} {each.dynamic_shared}")
            self._queue.append(lambda each=each: self._run(each))

    def capture(self, launches: Sequence[BoundLaunch]) -> "FakeGraph":
        """See `Driver`."""
        return FakeGraph(self, launches)

    def record(self) -> object:
        """See `Driver`."""
        self._clock += 1
        return self._clock

    def seconds_between(self, start: object, end: object) -> float:
        """See `Driver`."""
        assert isinstance(start, int) and isinstance(end, int)
        return float(end - start)

    def synchronize(self) -> None:
        """See `Driver`."""
        self.calls.append("synchronize")
        while self._queue:
            self._queue.pop(0)()

    def close(self) -> None:
        """See `Driver`."""
        self.live.clear()

    def _run(self, launch: BoundLaunch) -> None:
        kernel = launch.function
        assert callable(kernel)
        kernel(self._memory, *(address // 4 for address in launch.arguments))

    def _bytes(self, address: int, num_bytes: int) -> np.ndarray:
        return self._memory.view(np.uint8)[address : address + num_bytes]


class FakeGraph:
    """Launches that are kept, and queued whenever the graph is launched."""

    def __init__(self, driver: FakeDriver, launches: Sequence[BoundLaunch]) -> None:
        self._driver, self._launches = driver, tuple(launches)

    def launch(self, times: int = 1) -> None:
        """See `LaunchGraph`."""
        for _ in range(times):
            self._driver.launch(self._launches)

    def close(self) -> None:
        """See `LaunchGraph`."""


def _raw(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
