"""Where temporary buffers lie in one block of memory: offsets from live ranges, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    offsets = [0] * len(ranges)
    placed: list[int] = []
    sizes = [_round_up(r.size, alignment) for r in ranges]
    for n in sorted(range(len(ranges)), key=lambda n: (-sizes[n], ranges[n].first, n)):
        taken = sorted((offsets[m], offsets[m] + sizes[m]) for m in placed if ranges[m].meets(ranges[n]))
        offsets[n] = _best_gap(taken, sizes[n])
        placed.append(n)
    return Arena(tuple(offsets), max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0))


def _best_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Where the smallest gap of at least `size` bytes begins; `taken` are [start, end), sorted by start."""
    ends = [0]
    for _, end in taken:
        ends.append(max(ends[-1], end))
    starts = [start for start, _ in taken]
    gaps = [(start - end, end) for start, end in zip(starts, ends, strict=False) if start - end >= size]
    return min(gaps)[1] if gaps else ends[-1]


def _round_up(size: int, alignment: int) -> int:
    """The next multiple of `alignment`; an empty buffer still gets an address of its own."""
    return max(1, -(-size // alignment)) * alignment


__all__ = ["Arena", "LiveRange", "plan_arena"]
