"""Memory that calls of a program take and give back: of results on the device, and pinned on the host."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress

import numpy as np

from treadle.backends.call_lock import forks
from treadle.backends.cuda.driver import LEGACY_STREAM, PER_THREAD_STREAM, Driver
from treadle.backends.interface import TensorSpec
from treadle.errors import TreadleError

# cuMemAlloc and cuMemFree wait for the device: a call may do neither but at first.

MOST_WAITING = 8
"""Unused blocks of a size that may wait for streams of which nothing is known any more."""


class Block:
    """Memory of a result, which goes back with the last reference.

    users: the streams, besides the program's, for which it was handed out: what reads or writes it is queued there
    """

    def __init__(self, memory: DeviceMemory, address: int, num_bytes: int) -> None:
        self.memory, self.address, self.num_bytes = memory, address, num_bytes
        self.users = set[int]()

    @property
    def driver(self) -> Driver:
        """Of the device; it stays open as long as the block is there."""
        return self.memory.driver

    def __del__(self) -> None:
        self.memory.take_back(self.address, self.num_bytes, self.users)


class DeviceMemory:
    """Memory for the results of calls, which is used again by later calls of the same size.

    A block is dropped while work that reads it may still be queued, as tensors of PyTorch are. A later call takes it
    only if that work lies on streams behind which the call's own is queued: the default one, and the caller's. Others
    wait for the device, which is waited for once there are `MOST_WAITING` of a size.

    It outlives its program: arrays stay what they are after `close`, and the last one closes the driver.
    """

    def __init__(self, driver: Driver, owns_driver: bool) -> None:
        self.driver = driver
        self._owns_driver = owns_driver
        self._unused: list[tuple[int, int, set[int]]] = []
        self._given = set[int]()
        self._is_closed = False
        self._forks = forks()

    def take(self, num_bytes: int, stream: int | None) -> Block:
        """A block of at least so many bytes for a call on a caller's stream, behind which the program's is queued.

        TreadleError if the device has no such memory, also once all unused memory was given back.
        """
        rounded = _rounded(num_bytes)
        found = self._reused(rounded, stream)
        waiting = list(self._unused)
        if found is None and sum(room == rounded for _, room, _ in waiting) >= MOST_WAITING:
            self.driver.finish()
            for _, _, users in waiting:
                users.clear()
            found = self._reused(rounded, stream)
        if found is not None:
            return self._block(found, rounded)
        try:
            return self._block(self.driver.allocate(rounded), rounded)
        except TreadleError:
            if not self._unused:
                raise
        self.trim()
        return self._block(self.driver.allocate(rounded), rounded)

    def _reused(self, num_bytes: int, stream: int | None) -> int | None:
        """The address of an unused block of that size that may be written by what is queued now."""
        known = {LEGACY_STREAM, stream} - {PER_THREAD_STREAM}
        for entry in reversed(self._unused):
            address, room, users = entry
            if room != num_bytes or not users <= known:
                continue
            try:
                self._unused.remove(entry)
            except ValueError:  # another thread was faster
                continue
            for each in users - {stream}:
                self.driver.order(each, self.driver.stream_handle)
            return address
        return None

    def _block(self, address: int, num_bytes: int) -> Block:
        self._given.add(address)
        return Block(self, address, num_bytes)

    def take_back(self, address: int, num_bytes: int, users: set[int]) -> None:
        """A block that nobody refers to. It may come from any thread and within any call: the driver is left alone."""
        if self._forks != forks():
            return
        self._given.discard(address)
        self._unused.append((address, num_bytes, users))
        if self._is_closed:
            with suppress(TreadleError):
                self._end()

    def trim(self) -> None:
        """Gives all unused memory back, which waits for the device."""
        while self._unused:
            self.driver.free(self._unused.pop()[0])

    def close(self) -> None:
        """No more calls: memory goes back, at once or with the arrays that are still there."""
        if self._forks != forks() or self._is_closed:
            return
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        self.trim()
        if not self._given and self._owns_driver:
            self.driver.close()


def _rounded(num_bytes: int) -> int:
    """Sizes of which few are different: at most an eighth more."""
    step = max(256, 1 << max(0, num_bytes.bit_length() - 4))
    return max(256, -(-num_bytes // step) * step)


class Staging:
    """Pinned memory for the tensors that calls copy from and to the host, kept for the next call."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pinned: dict[Hashable, np.ndarray] = {}

    def array(self, key: Hashable, spec: TensorSpec) -> np.ndarray:
        """The array for a tensor, the same at each call; TreadleError if there is no such memory."""
        if key not in self._pinned:
            self._pinned[key] = self._driver.allocate_host(max(1, spec.num_bytes))
        return self._pinned[key][: spec.num_bytes].view(spec.dtype).reshape(spec.shape)

    def close(self) -> None:
        """Gives the memory back, which no queued copy uses any more."""
        while self._pinned:
            self._driver.free_host(self._pinned.popitem()[1])
