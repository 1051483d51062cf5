"""A device in numpy: memory is one array, a kernel is a Python function, and every call is written down."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from treadle.artifact.manifest import BufferMap
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

    number, stream_handle = 0, 1000

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

    def allocate_host(self, num_bytes: int) -> np.ndarray:
        """See `Driver`."""
        return np.full(num_bytes, 0xFF, np.uint8)

    def free_host(self, array: np.ndarray) -> None:
        """See `Driver`."""

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """See `Driver`."""
        self.calls.append("copy")
        self._queue.append(lambda: self._bytes(target, num_bytes).__setitem__(..., self._bytes(source, num_bytes)))

    def copy_rows(self, target: int, source: int, pitches: tuple[int, int], width: int, rows: int) -> None:
        """See `Driver`."""
        for row in range(rows):
            self.copy(target + row * pitches[0], source + row * pitches[1], width)

    def fill(self, target: int, word: int, count: int) -> None:
        """See `Driver`."""
        self.calls.append("fill")
        self._queue.append(lambda: self._bytes(target, 4 * count).view(np.uint32).__setitem__(..., np.uint32(word)))

    def order(self, first: int, then: int) -> None:
        """See `Driver`. All streams are one."""
        if first != then:
            self.calls.append(f"order {first} {then}")

    def is_capturing(self, stream: int) -> bool:
        """See `Driver`."""
        return False

    def device_of(self, pointer: int) -> int:
        """See `Driver`."""
        return 0

    def finish(self) -> None:
        """See `Driver`."""
        self.synchronize()

    def check(self) -> None:
        """See `Driver`."""

    def mark(self) -> object:
        """See `Driver`."""
        done: list[bool] = []
        self._queue.append(lambda: done.append(True))
        return done

    def is_reached(self, mark: list[bool]) -> bool:
        """See `Driver`."""
        return bool(mark)

    def wait_for(self, mark: list[bool]) -> None:
        """See `Driver`."""
        self.calls.append("wait")
        while not mark:
            self._queue.pop(0)()

    def load(
        self, image: bytes, kernel: str, num_arguments: int, dynamic_shared: int, maps: Sequence[BufferMap] = ()
    ) -> object:
        """See `Driver`."""
        assert not maps, "kernels in Python take arrays"
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
        self._driver, self._launches = driver, list(launches)

    def launch(self, times: int = 1) -> None:
        """See `LaunchGraph`."""
        for _ in range(times):
            self._driver.launch(self._launches)

    def update(self, position: int, arguments: Sequence[int]) -> None:
        """See `LaunchGraph`."""
        self._launches[position] = replace(self._launches[position], arguments=tuple(arguments))

    def close(self) -> None:
        """See `LaunchGraph`."""


def _raw(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
