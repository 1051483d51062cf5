"""How blocks share out the windows of a CPU kernel: rows of an image first, then its channels.

Products of the same images go through their rows of pixels, too, so that a core finds what it wrote before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from treadle.dialects.graph import ComputeOp, ReduceOp
from treadle.schedules.index_value import Index
from treadle.schedules.window_reads import Windows, slides_along

_MOST_ROWS = 16
_LEAST_ROWS = 4
"""Rows of an image that are worth a block's own code; of fewer, blocks have all, and cores different channels."""


@dataclass(frozen=True)
class WindowsSplit:
    """Blocks of a few rows of tiles.

    rows: the output dimension of which a block has a part; order: the other dimensions but that of the tiles, the
    outermost first; extents: of the output, of the tiles' dimension 1, of the last one in vectors
    """

    rows: int
    order: tuple[int, ...]
    extents: tuple[int, ...]

    @property
    def extent(self) -> int:
        """Rows there are for each index of the other dimensions."""
        return self.extents[self.rows]

    def blocks(self, rows: int) -> int:
        """Blocks of so many rows."""
        return ceil(self.extent / rows) * self._others

    @property
    def _others(self) -> int:
        return prod(self.extents[d] for d in self.order if d != self.rows)

    def index(self, block: Index, row: Index, rows: int) -> list[Index]:
        """The output index of a row of a block, of the last dimension in vectors."""
        part = [ceil(self.extent / rows) if d == self.rows else self.extents[d] for d in self.order]
        found = dict(zip(self.order, block.delinearize(part), strict=True))
        found[self.rows] = found[self.rows] * rows + row
        return [found.get(d, row * 0) for d in range(len(self.extents))]

    def default_rows(self, cores: int) -> int:
        """Rows of a block: of those of which each core has as many parts of an image, a sixteenth more or less, the
        most up to 16, or the fewest; all rows, where such parts are too short."""
        sizes = (ceil(self.extent / parts) for parts in range(cores, self.extent // _LEAST_ROWS + 1, cores))
        even = [rows for rows in sizes if self._is_even(rows, cores)]
        return next((rows for rows in even if rows <= _MOST_ROWS), min(even, default=self.extent))

    def _is_even(self, rows: int, cores: int) -> bool:
        parts = ceil(self.extent / rows)
        return parts % cores == 0 and 16 * (rows * parts - self.extent) <= self.extent


def windows_split(windows: Windows, lanes: int) -> WindowsSplit:
    """The blocks of some windows, whose elements along the last dimension are vectors."""
    compute, reduce = windows.compute, windows.reduce
    extents = [1 if d == windows.dim else extent for d, extent in enumerate(compute.shape)]
    extents[-1] //= lanes
    others = [d for d in range(len(extents)) if d != windows.dim]
    sliding = _sliding(compute, reduce, others)
    rows = sliding[-1] if sliding else max(others, key=lambda d: (extents[d] > 1, d))
    first = [d for d in others[:1] if d not in sliding]
    rest = [d for d in others if d not in (*first, *sliding)]
    return WindowsSplit(rows, (*first, *sliding, *rest), tuple(extents))


def _sliding(compute: ComputeOp, reduce: ReduceOp, dims: Sequence[int]) -> list[int]:
    return [d for d in dims if compute.shape[d] > 1 and slides_along(compute, reduce, d)]
