"""The tiles of the CUDA-core product: what a choice of knobs implies, and how threads fill a tile together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from treadle.dialects.loop.tiles import SECTOR_BYTES, WARP
from treadle.dialects.task import Mapping, repeat, spatial
from treadle.schedules.template import Choices, number, pair

_LANES = (4, 8)
"""How the lanes of a warp lie over a warp's tile."""
_PADDING = 4
"""Elements after each row of a tile that is transposed on its way into shared memory. A row of a multiple of 8 elements
then begins at an odd multiple of 4, so that the lanes that store one column of 8 rows meet in no bank; 16 bytes stay
aligned."""
_SOME = 32
"""Accumulators of a thread from which `__launch_bounds__` names a minimum of blocks per multiprocessor."""


@dataclass(frozen=True)
class CooperativeCopy:
    """How all threads of a block fill a tile of `rows` lines whose elements are consecutive in global memory.

    A thread takes `vector` neighbours at once. A warp takes whole lines where these stay lines in shared memory,
    else one sector of each of many lines, whose elements it stores side by side.
    """

    high: int
    wide: int
    warps: tuple[int, int]
    pieces: tuple[int, int]
    vector: int

    @property
    def mapping(self) -> Mapping:
        """The tasks: line and element."""
        (warp_rows, warp_columns), (rows, columns) = self.warps, self.pieces
        outer = repeat(rows // warp_rows, columns // warp_columns) * spatial(*self.warps)
        return outer * spatial(self.high, self.wide) * repeat(1, self.vector)

    @property
    def per_thread(self) -> int:
        """Elements that a thread copies."""
        return self.pieces[0] * self.pieces[1] * self.vector // (self.warps[0] * self.warps[1])

    @property
    def strides(self) -> tuple[int, int, int]:
        """Lines and elements from one of a thread's vectors to the next, and its vectors of a line."""
        across = self.warps[1] * self.wide * self.vector
        return self.warps[0] * self.high, across, self.pieces[1] // self.warps[1]

    @staticmethod
    def of(rows: int, columns: int, threads: int, most: int, transposed: bool) -> CooperativeCopy | None:
        """The filling with the longest vectors, at most `most`; None where the threads do not share the tile evenly.

        All extents are powers of two.
        """
        vectors = (v for v in (4, 2, 1) if v <= most)
        found = (_filling(rows, columns, threads // WARP, v, transposed) for v in vectors)
        return next((filling for filling in found if filling is not None), None)


def _filling(rows: int, columns: int, warps: int, vector: int, transposed: bool) -> CooperativeCopy | None:
    wide = SECTOR_BYTES // 4 // vector if transposed else min(columns // vector, WARP)
    high = min(WARP // max(wide, 1), rows)
    wide = WARP // high
    if wide * vector > columns or columns % (wide * vector) or rows % high:
        return None
    pieces = rows // high, columns // (wide * vector)
    warp_columns = min(pieces[1], warps)
    warp_rows = warps // warp_columns
    if pieces[0] % warp_rows:
        return None
    return CooperativeCopy(high, wide, (warp_rows, warp_columns), pieces, vector)


class SimtTile:
    """The extents that a choice of knobs implies: a block's tile is `m x n` of C and `block_k` of K."""

    lanes: ClassVar[tuple[int, int]] = _LANES

    def __init__(self, choices: Choices):
        self.warps, self.repeats, self.thread = (pair(choices, k) for k in ("warps", "repeats", "thread"))
        self.block_k = number(choices, "block_k")
        self.mapping: Mapping = spatial(*self.warps) * repeat(*self.repeats) * spatial(*_LANES) * repeat(*self.thread)
        self.m, self.n = self.mapping.shape
        self.threads = self.mapping.workers
        self.outputs = self.m * self.n // self.threads
        self.a_transposed, self.b_transposed = choices["a_order"] == "k", choices["b_order"] == "k"
        self.a_filling = self._filling(self.m, self.a_transposed, number(choices, "a_vector"))
        self.b_filling = self._filling(self.n, self.b_transposed, number(choices, "b_vector"))
        # Without a minimum, ptxas spills a few registers for the sake of one block more.
        self.min_blocks = number(choices, "min_blocks_per_sm") if self.outputs >= _SOME else None

    def _filling(self, extent: int, transposed: bool, most: int) -> CooperativeCopy | None:
        """The tile of A or B as lines of K if it is transposed, else as lines of M or N."""
        rows, columns = (extent, self.block_k) if transposed else (self.block_k, extent)
        return CooperativeCopy.of(rows, columns, self.threads, most, transposed)

    @property
    def row_of_a(self) -> int:
        """Elements of a row of A's tile in shared memory, which holds K by M."""
        return self.m + (_PADDING if self.a_transposed else 0)

    @property
    def row_of_b(self) -> int:
        """Elements of a row of B's tile in shared memory, which holds K by N."""
        return self.n + (_PADDING if self.b_transposed else 0)

    @property
    def shared_elements(self) -> int:
        """Elements of two tiles of A and two of B."""
        return 2 * self.block_k * (self.row_of_a + self.row_of_b)
