"""What the accesses of a block's warps add up to, and what blocks that share elements access for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop.tiles import WARP
from treadle.schedules.gpu_work import Addresses, in_warps, sectors, shared_cycles

_SUM_BYTES = 16
_KEPT = 2048
"""Counts that are kept, with the addresses of up to 1024 threads each."""


@dataclass
class Traffic:
    """Adds up the accesses of a block of `threads`; `times` are those of each thread."""

    threads: int
    sectors: float = 0.0
    shared_loads: float = 0.0
    shared_stores: float = 0.0
    accesses: float = 0.0
    thread: Addresses = field(init=False)

    def __post_init__(self) -> None:
        self.thread = np.arange(self.threads, dtype=np.int64)

    @property
    def warps(self) -> int:
        """Warps of the block."""
        return -(-self.threads // WARP)

    def reach(self, addresses: Addresses, width: int, times: float) -> None:
        """Accesses of global memory."""
        self.sectors += times * _sectors(addresses.tobytes(), width)
        self.accesses += times * self.warps

    def load(self, addresses: Addresses, width: int, times: float) -> None:
        """Loads from shared memory."""
        self.shared_loads += times * _shared_cycles(addresses.tobytes(), width)
        self.accesses += times * self.warps

    def store(self, addresses: Addresses, width: int, times: float) -> None:
        """Stores to shared memory."""
        self.shared_stores += times * _shared_cycles(addresses.tobytes(), width)
        self.accesses += times * self.warps

    def add_up(self, accumulators: int) -> None:
        """Each of the blocks that share elements stores its sums and arrives; the last one loads all of them."""
        vectors = accumulators * 4 // _SUM_BYTES
        self.reach(self.thread * _SUM_BYTES, _SUM_BYTES, 2 * vectors)
        self.sectors += self.warps
        self.accesses += self.warps


@lru_cache(_KEPT)
def _sectors(addresses: bytes, width: int) -> int:
    """`sectors` of addresses of all threads: those of one schedule are mostly those of its neighbours."""
    return sectors(in_warps(np.frombuffer(addresses, np.int64)), width)


@lru_cache(_KEPT)
def _shared_cycles(addresses: bytes, width: int) -> int:
    """`shared_cycles` in the same way."""
    return shared_cycles(in_warps(np.frombuffer(addresses, np.int64)), width)


def tensor_bytes(value: SSAValue) -> int:
    """Bytes of a tensor."""
    type = value.type
    assert isinstance(type, TensorType)
    return byte_width(type.get_element_type()) * prod(type.get_shape())


__all__ = ["Traffic", "tensor_bytes"]
