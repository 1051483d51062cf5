"""What one schedule of a kernel does, as numbers: the one record that every cost model reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Body:
    """A piece of straight code: the body of an innermost loop that is not unrolled, or what stands beside such loops.

    executions: of one block, on average over the blocks; the counts below are of one execution of one thread
    arithmetic: operations on floats, a multiplication and the addition that uses it being one; of vectors as wide as
        the kernel's they count one, whatever the elements; a division or a function such as exp counts what it costs
    loads, stores: of memory; registers are not accessed
    chain: additions of which each waits for the last, in the longest sequence that goes on to the next execution
    """

    executions: float
    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    chain: float = 0.0


@dataclass(frozen=True)
class Reuse:
    """What comes from behind a cache, given how much it keeps.

    capacity: bytes that it needs for this; traffic: bytes that are then moved into it by one worker's share of blocks
    """

    capacity: float
    traffic: float


@dataclass(frozen=True)
class Work:
    """The work of one kernel.

    blocks, threads: of the grid, and of a block
    bodies: the straight code of a block
    reuse: by ascending capacity; the first needs no cache, the last keeps everything
    share: blocks that one worker computes in a row, for which `reuse` was counted
    local_bytes: buffers of a block that are neither tensors nor registers, such as packed panels
    """

    blocks: int
    threads: int
    bodies: tuple[Body, ...]
    reuse: tuple[Reuse, ...]
    share: float
    local_bytes: int = 0

    def traffic(self, capacity: float) -> float:
        """Bytes that one worker's share moves into a cache of `capacity` bytes."""
        moved = self.reuse[0].traffic
        for step in self.reuse:
            if step.capacity > capacity:
                break
            moved = min(moved, step.traffic)
        return moved


__all__ = ["Body", "Reuse", "Work"]
