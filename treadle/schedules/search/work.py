"""The features of a scheduled kernel that cost models read: operations, memory accesses, cache traffic."""

from __future__ import annotations

from dataclasses import dataclass

REGISTER_BYTES = 2048
"""Bytes of all vector registers with AVX-512: smaller local buffers are assumed to be in registers."""


MASK_OPERATIONS = 4.0
"""Operations on vectors that a masked access takes besides itself: two ends are broadcast and compared. GCC 12 writes
nine instructions for one, half of which need the ports of arithmetic on vectors."""


def masked_accesses(lanes: float, stride: float) -> float:
    """Accesses through masks that one of `lanes` elements takes: one, or one for each lane as in `strided_loads`."""
    return 1.0 if abs(stride) <= 2 else lanes


def strided_loads(lanes: float, stride: float) -> float:
    """Loads of a vector of elements that are `stride` elements apart, at least two, on a CPU: two vectors and a shuffle
    for every second element, as `treadle.h` has it, else one for each lane."""
    return 2.0 if abs(stride) == 2 and lanes > 2 else lanes


@dataclass(frozen=True)
class Body:
    """Straight-line code: the body of an innermost loop that is not unrolled, or the code outside of such loops.

    executions: of one block, on average over the blocks; the counts below are of one execution of one thread
    arithmetic: operations on floats or on vectors of them; a fused multiply-add counts one, a division or a function
        such as exp counts as the number of operations that take its time
    loads, stores: of memory; registers are not accessed
    chain: length of the longest sequence of dependent additions that is carried to the next execution
    masked: how many of the loads and stores are of the lanes of a mask, which compilers hoist out of no loop
    """

    executions: float
    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    chain: float = 0.0
    masked: float = 0.0

    @property
    def operations(self) -> float:
        """Operations on vectors, those of masks included."""
        return self.arithmetic + MASK_OPERATIONS * self.masked


@dataclass(frozen=True)
class Reuse:
    """The traffic of a cache that is large enough for some reuse.

    capacity: bytes that the reuse needs; traffic: bytes that one worker's share of the blocks then moves into it
    """

    capacity: float
    traffic: float


@dataclass(frozen=True)
class Work:
    """The work of one kernel.

    blocks, threads: of the grid, and of a block
    bodies: the straight code of a block
    reuse: by ascending capacity; the first needs no cache, the last keeps everything
    share: blocks that one worker computes, for which `reuse` was counted
    """

    blocks: int
    threads: int
    bodies: tuple[Body, ...]
    reuse: tuple[Reuse, ...]
    share: float

    def traffic(self, capacity: float) -> float:
        """Bytes that one worker's share moves into a cache of `capacity` bytes."""
        moved = self.reuse[0].traffic
        for step in self.reuse:
            if step.capacity > capacity:
                break
            moved = min(moved, step.traffic)
        return moved


__all__ = ["REGISTER_BYTES", "Body", "Reuse", "Work", "strided_loads"]
