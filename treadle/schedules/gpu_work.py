"""The features of a GPU kernel that cost models read, and what the accesses of its warps cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treadle.dialects.loop.tiles import WARP

Addresses: TypeAlias = "NDArray[Any]"
"""Bytes' addresses, of each warp's lanes: two dimensions."""

SECTOR_BYTES = 32
BANKS, BANK_BYTES = 32, 4
OTHER_REGISTERS = 36
"""Registers of a thread beside its arrays. NVRTC 13.0 takes 29 to 44 for the products of docs/schedules.md whose tiles
do not overhang."""


@dataclass(frozen=True)
class GpuWork:
    """The work of one kernel; what is not said to be of a thread or of the kernel is of a block.

    blocks: of the grid; threads: of a block
    registers: of a thread, estimated: its largest set of live arrays and `OTHER_REGISTERS`
    min_blocks: that a multiprocessor is to hold, for which the compiler saves registers; 1 if it is not told
    operations: on floats, of all threads, outside of tensor cores; a fused multiply-add counts one
    tensor_flops: on tensor cores, whose operands have `tensor_bytes`
    sectors: of 32 bytes, between L2 and the multiprocessor
    shared_loads, shared_stores: cycles of shared memory's port, those of bank conflicts included
    accesses: instructions of warps that access memory
    steps: iterations of the loop over tiles that are loaded `ahead` steps before they are used
    round_trips: waits for global memory that nothing hides
    barriers: of the block
    bytes: of the kernel's tensors, each once
    """

    blocks: int
    threads: int
    registers: int
    min_blocks: int
    shared_bytes: int
    operations: float
    tensor_flops: float
    tensor_bytes: int
    sectors: float
    shared_loads: float
    shared_stores: float
    accesses: float
    steps: float
    ahead: int
    round_trips: float
    barriers: float
    bytes: int

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // WARP)


def in_warps(addresses: Addresses, lanes: int = WARP) -> Addresses:
    """Addresses of all threads of a block as rows of warps, of which the first `lanes` take part; a warp that is not
    full repeats its last one."""
    short = -len(addresses) % WARP
    whole = np.concatenate([addresses, np.repeat(addresses[-1:], short)]) if short else addresses
    return whole.reshape(-1, WARP)[:, :lanes]


def sectors(addresses: Addresses, width: int) -> int:
    """The sectors that accesses of `width` bytes touch, summed over the warps. Source: CUDA C++ Best Practices Guide
    13.0, "Coalesced Access to Global Memory"."""
    ends = (addresses, addresses + (width - 1)) if width > 1 else (addresses,)
    touched = np.sort(np.concatenate([end // SECTOR_BYTES for end in ends], axis=1), axis=1)
    return int(len(touched) + np.count_nonzero(np.diff(touched, axis=1)))


def shared_cycles(addresses: Addresses, width: int) -> int:
    """The cycles of accesses of `width` bytes to shared memory, summed over the warps.

    A wave is a warp for accesses of up to 4 bytes, half of one for 8 bytes, a quarter for 16; it takes as many cycles
    as it reads different words of one bank. Source: CUDA C++ Best Practices Guide 13.0, "Shared Memory and Memory
    Banks".
    """
    lanes = WARP * BANK_BYTES // max(width, BANK_BYTES)
    waves = addresses.reshape(-1, min(lanes, addresses.shape[1]))
    words = waves[:, :, None] // BANK_BYTES + np.arange(max(1, width // BANK_BYTES))
    words = np.sort(words.reshape(len(waves), -1), axis=1)
    new = np.ones(words.shape, bool)
    new[:, 1:] = np.diff(words, axis=1) != 0
    cells = words % BANKS + np.arange(len(waves))[:, None] * BANKS
    counts = np.bincount(cells[new], minlength=len(waves) * BANKS)
    return int(counts.reshape(-1, BANKS).max(axis=1).sum())


__all__ = [
    "BANKS", "BANK_BYTES", "OTHER_REGISTERS", "SECTOR_BYTES", "Addresses", "GpuWork", "in_warps", "sectors",
    "shared_cycles",
]  # fmt: skip
