"""The memory planner: byte offsets of temporary buffers in one arena from their live ranges, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LiveRange:
    """A buffer of `size` bytes that holds a value from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int

    def meets(self, other: LiveRange) -> bool:
        """Whether both hold a value in some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """The byte offset of each live range, in the order given, and the number of bytes that hold them all."""

    offsets: tuple[int, ...]
    nbytes: int


def plan_arena(ranges: Sequence[LiveRange], alignment: int = 64) -> Arena:
    """Offsets at multiples of `alignment` such that no two ranges that meet share a byte.

    The largest buffer is placed first; each goes into the smallest gap that holds it between the buffers
    already placed that it meets, else above them. Ties are broken by first step, then position: equal input,
    equal plan. The arena is never larger than the sum of the sizes, each rounded up to the alignment.
    Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), "greedy by
    size".
    """
    sizes = [_round_up(r.size, alignment) for r in ranges]
    steps = np.array([(r.first, r.last) for r in ranges], np.int64).reshape(-1, 2)
    order = sorted(range(len(ranges)), key=lambda n: (-sizes[n], ranges[n].first, n))
    first, last = steps[order].T
    start, end = np.zeros((2, len(ranges)), np.int64)
    for n, position in enumerate(order):
        # Vectorised by NumPy: each of thousands of buffers is compared with all that have an offset.
        meets = (first[:n] <= last[n]) & (last[:n] >= first[n])
        start[n] = _best_gap(start[:n][meets], end[:n][meets], sizes[position])
        end[n] = start[n] + sizes[position]
    offsets = dict(zip(order, start.tolist(), strict=True))
    return Arena(tuple(offsets[n] for n in range(len(ranges))), int(end.max(initial=0)))


def _best_gap(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> int:
    """Where the smallest gap of at least `size` bytes between what is taken begins, of two the first."""
    order = np.argsort(starts)
    below = np.maximum.accumulate(np.concatenate([[0], ends[order]]))
    gaps = starts[order] - below[:-1]
    fitting = np.flatnonzero(gaps >= size)
    return int(below[fitting[np.argmin(gaps[fitting])]] if fitting.size else below[-1])


def _round_up(size: int, alignment: int) -> int:
    """The next multiple of `alignment`; an empty buffer still gets an address of its own."""
    return max(1, -(-size // alignment)) * alignment


__all__ = ["Arena", "LiveRange", "plan_arena"]
