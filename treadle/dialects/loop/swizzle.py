"""Swizzled rows: a permutation of the chunks of each row of a matrix, so that columns of chunks have no bank conflicts.

Shared memory has 32 banks of 4 bytes; eight lanes that access 16 bytes each are served at once if their chunks have
different addresses modulo 128 bytes. Row-major chunks of one column have not; permuted by the row's number they have:

    >>> swizzle = swizzle_of_rows(64, 16)       # rows of 64 bytes, in chunks of 16
    >>> [swizzle.stored_chunk(row, 0) for row in range(8)]
    [0, 0, 1, 1, 2, 2, 3, 3]

Two rows of 64 bytes fill the 128 bytes of all banks, hence two rows with the same permutation.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from treadle.errors import TreadleError

LINE_BYTES = 128
"""All banks once."""


@dataclass(frozen=True)
class Swizzle:
    """Chunk c of row r is stored at chunk `c xor (r / rows) % phases` of that row.

    chunk: consecutive elements that stay together; rows: consecutive rows that are permuted alike; phases: different
    permutations, a power of two that divides the number of chunks in a row
    """

    chunk: int
    rows: int
    phases: int

    def stored_chunk(self, row: int, chunk: int) -> int:
        """The chunk of the row at which a chunk is stored."""
        return chunk ^ (row // self.rows % self.phases)

    def column(self, row: int, column: int) -> int:
        """The element of the row at which an element is stored."""
        return self.stored_chunk(row, column // self.chunk) * self.chunk + column % self.chunk

    def problem(self, columns: int) -> str | None:
        """Why rows of `columns` elements cannot be swizzled by this, or None."""
        if self.chunk < 1 or self.rows < 1 or self.phases < 1 or self.phases & (self.phases - 1):
            return f"{self}: expected sizes of at least 1, and a power of two for the phases"
        if columns % (self.chunk * self.phases):
            return f"{self} of rows of {columns} elements: expected a multiple of {self.chunk * self.phases}"
        return None

    def __str__(self) -> str:
        return f"swizzle<{self.chunk}, {self.rows}, {self.phases}>"


def swizzle_of_rows(row_bytes: int, element_bytes: int, chunk_bytes: int = 16) -> Swizzle:
    """The swizzle under which a column of chunks has the fewest bank conflicts. Rows of an odd number of chunks need
    none: their columns have no conflicts in row-major order. TreadleError for rows that are no multiple of a chunk.
    """
    chunks, positions = row_bytes // chunk_bytes, LINE_BYTES // chunk_bytes
    if row_bytes % chunk_bytes:
        raise TreadleError(
            f"rows of {row_bytes} bytes in chunks of {chunk_bytes} have no swizzle",
            accepted=f"a multiple of {chunk_bytes} bytes",
        )
    # Row r begins at position chunks * r, which takes the same value again after `positions / phases` rows.
    phases = gcd(chunks, positions)
    return Swizzle(chunk_bytes // element_bytes, positions // phases, phases)
