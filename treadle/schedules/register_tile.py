"""The register tile of a product on a CPU: panels of a few vectors, and as many rows as the registers have room for."""

from __future__ import annotations

from treadle.target import Target

MOST_ROWS = 8
MOST_VECTORS = 4
DEFAULT_VECTORS = 2
"""Of a panel, so that a broadcast element of the left operand serves two fmas."""


def panel_columns(target: Target, vectors: int = DEFAULT_VECTORS) -> int:
    """Columns of a panel of the right operand."""
    return vectors * target.lanes


def most_rows(target: Target, vectors: int = DEFAULT_VECTORS) -> int:
    """Rows of the largest tile that stays in registers, next to a row of the panel and a broadcast element.

    Of two vectors 8 rows with 32 registers, 6 with 16; of four vectors 6 and 2. Measured with AVX2 code (gcc 12,
    x86-64-v3) on a Xeon, one thread, packed weights, panels of two vectors: 504 x 512 x 512 takes 2.97 ms with 6 rows
    and 3.60 ms with 8, which spill; 510 x 512 x 512 takes 2.99 ms, and 122 ms where the vectors of the text are
    AVX-512's (CPU time, the least of 250 and of 60 interleaved runs).
    """
    return max(1, min(MOST_ROWS, (target.vector_registers - vectors - 1) // vectors))
