"""How the threads of a block fill a stage together: consecutive threads take consecutive memory, vectors innermost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, gcd, prod

from treadle.dialects.task import Mapping as TaskMapping
from treadle.dialects.task import repeat, spatial
from treadle.schedules.index_value import Index
from treadle.schedules.nest.layout import Layout

_SECTOR_BYTES = 32
"""What global memory moves at once."""


@dataclass(frozen=True)
class Filling:
    """A stage's elements in the order in which they are copied, `vector` of them at once.

    digits: the dimensions of the box (levels that stand apart first, then those of the tensor), each with an extent and
        the places between neighbours, outermost first; the last one's neighbours are neighbours in memory
    """

    digits: tuple[tuple[int, int, int], ...]
    rank: int
    vector: int

    @property
    def vectors(self) -> int:
        """All of them."""
        return prod(extent for _, extent, _ in self.digits) // self.vector

    def mapping(self, threads: int) -> TaskMapping:
        """Which vectors a thread copies; where the threads do not divide them, the last ones of some do not exist."""
        return repeat(ceil(self.vectors / threads)) * spatial(threads)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents that a vector's number is made of."""
        *outer, last = (extent for _, extent, _ in self.digits)
        return (*outer, last // self.vector)

    def place(self, parts: Sequence[Index], element: Index) -> list[Index]:
        """The place of an element of a vector, whose number's digits are given."""
        found: dict[int, Index] = {}
        for n, ((dim, _, step), part) in enumerate(zip(self.digits, parts, strict=True)):
            where = (part * self.vector + element if n == len(parts) - 1 else part) * step
            found[dim] = found[dim] + where if dim in found else where
        return [found[dim] for dim in range(self.rank)]


def filling_of(layout: Layout, nearest: Sequence[int], element_bytes: int, vector: int, *, is_async: bool) -> Filling:
    """The filling of a stage whose tensor has its nearest neighbours along the last of the dimensions `nearest`.

    Asynchronous copies move vectors to neighbours, so that across the rows of a stage they move single elements.
    Where rows of the stage lie across these, only as many as a sector holds are taken at once: the lanes of a warp then
    store to more rows of the stage's.
    """
    box, apart = layout.box, len(layout.box.apart)
    outer = [(n, extent, 1) for n, extent in enumerate(box.apart.values())]
    line = next((dim for dim in reversed(nearest) if box.extents[dim] > 1), nearest[-1])
    middle = [(apart + dim, box.extents[dim], 1) for dim in nearest if dim != line]
    extent, sector = box.extents[line], _SECTOR_BYTES // element_bytes
    across = line != layout.order[-1]
    in_sectors = across and extent % sector == 0
    chunks = [(apart + line, extent // sector, sector)] if in_sectors else []
    last = apart + line, sector if in_sectors else extent, 1
    rank = apart + len(box.extents)
    return Filling((*outer, *chunks, *middle, last), rank, 1 if across and is_async else gcd(vector, last[1]))


__all__ = ["Filling", "filling_of"]
