"""The tiles of attention on tensor cores: what a choice of knobs implies for heads of given sizes."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.dialects.loop import Swizzle, swizzle_of_rows
from treadle.dialects.loop.tiles import WARP
from treadle.schedules.template import Choices, number
from treadle.schedules.templates.matmul_mma_tile import CHUNK_BYTES, PRODUCT_M

ELEMENT_BYTES = 2
CHUNK = CHUNK_BYTES // ELEMENT_BYTES
"""Elements that a thread copies at a time, and of a row of the matrices that a warp loads."""
STEP = 16
"""Terms of a tile product, and columns of the two of them whose operand B is loaded at once."""


@dataclass(frozen=True)
class HeadTile:
    """Lines of a head in shared memory: queries, keys or values, or rows of the result.

    lines: how many; size: elements of a line that there are; extent: with the zeros that fill the last tile product
    """

    lines: int
    size: int
    extent: int

    @property
    def chunks(self) -> int:
        """Chunks of a line."""
        return self.extent // CHUNK

    @property
    def bytes(self) -> int:
        """Bytes of all lines."""
        return self.lines * self.extent * ELEMENT_BYTES

    @property
    def swizzle(self) -> Swizzle:
        """The permutation of chunks under which neither copies nor loads of fragments meet in a bank."""
        return swizzle_of_rows(self.extent * ELEMENT_BYTES, ELEMENT_BYTES)

    def lines_at_once(self, workers: int) -> int:
        """Lines of which so many workers take a chunk each."""
        return min(self.lines, workers // self.chunks)


@dataclass(frozen=True)
class AttentionMmaTile:
    """A block's tiles: `rows` queries, of which each warp takes a part of its own, and `stages` times `columns` keys
    with their values. `parts` warps share rows, each with a part of a tile's keys.

    size: of a query and a key (D); width: of a value (E)
    """

    rows: int
    columns: int
    warps: int
    parts: int
    stages: int
    size: int
    width: int

    @staticmethod
    def of(choices: Choices, size: int, width: int) -> AttentionMmaTile:
        """The tiles that a choice of knobs means."""
        names = ("rows", "columns", "warps", "parts", "stages")
        rows, columns, warps, parts, stages = (number(choices, name) for name in names)
        return AttentionMmaTile(rows, columns, warps, parts, stages, size, width)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps * self.parts

    @property
    def own_columns(self) -> int:
        """Keys of a tile that a warp takes."""
        return self.columns // self.parts

    @property
    def slabs(self) -> int:
        """Tile products of a warp that lie below one another."""
        return self.rows // PRODUCT_M // self.warps

    @property
    def padded_size(self) -> int:
        """Elements of a query and a key, with zeros up to whole tile products."""
        return -(-self.size // STEP) * STEP

    @property
    def padded_width(self) -> int:
        """The same of a value."""
        return -(-self.width // STEP) * STEP

    @property
    def queries(self) -> HeadTile:
        """The block's queries."""
        return HeadTile(self.rows, self.size, self.padded_size)

    @property
    def keys(self) -> HeadTile:
        """The keys of a stage."""
        return HeadTile(self.columns, self.size, self.padded_size)

    @property
    def values(self) -> HeadTile:
        """The values of a stage."""
        return HeadTile(self.columns, self.width, self.padded_width)

    @property
    def result(self) -> HeadTile:
        """The block's rows of the result."""
        return HeadTile(self.rows, self.width, self.padded_width)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block. The result takes the place of the queries; parts of it and of its sums are
        added up beside it."""
        outer = max(self.queries.bytes, self.result.bytes)
        parts = (self.parts - 1) * self.padded_width + 8 * self.parts if self.parts > 1 else 0
        return outer + self.stages * (self.keys.bytes + self.values.bytes) + 4 * self.rows * parts

    @property
    def registers(self) -> int:
        """Registers of a thread that hold matrices: its queries, its part of the result, and scores; and where the
        swizzled fragments of each 16 columns of keys and of values begin."""
        matrices = self.slabs * (self.padded_size // 4 + self.padded_width // 2 + self.own_columns // 2)
        return matrices + (self.padded_size + self.padded_width) // STEP


__all__ = ["CHUNK", "STEP", "AttentionMmaTile", "HeadTile"]
