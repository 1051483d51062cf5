"""The register tile of a product on a CPU: panels of a few vectors, and as many rows as the registers have room for."""

from __future__ import annotations

from math import ceil

from treadle.target import Target

MOST_ROWS = 14
MOST_VECTORS = 6


def default_vectors(target: Target, columns: int) -> int:
    """Vectors of a panel of a matrix of some columns, where none are chosen: with 32 registers of 64 bytes three, or
    four that hold the whole matrix; else two, since nothing else was measured.

    Measured with AVX-512 code (gcc, -march=native) on a Xeon, one thread, default rows and chunks of each width: the
    time of two vectors divided by that of three and of four (the least of 100 interleaved rounds; M x K x N):
    BERT's 128 x 768 x 2304 1.37 and 1.38, and again 1.19 and 1.14, 128 x 768 x 768 1.19 and 1.02, and again 1.15 and
    1.08 (128 x 768 x 3072 and 128 x 3072 x 768 differed by factors between the two runs, 3.2 and 1.9, 1.05 and 1.76:
    other processes used the memory), 12 of 128 x 64 x 128 1.12 and 1.21, 12 of 128 x 128 x 64 0.93 and 1.11;
    MobileNet-V2's 16 x 32 x 12544 1.07 and 1.03, 96 x 16 x 12544 1.27 and 1.20, 24 x 96 x 3136 1.12 and 1.21,
    192 x 32 x 784 1.04 and 1.11, 384 x 64 x 196 1.12 and 1.17, 64 x 384 x 196 1.21 and 0.85, 576 x 96 x 196 1.21 and
    1.19, 96 x 576 x 196 1.17 and 1.07, 49 x 576 x 160 0.99 and 1.01, 49 x 160 x 960 1.06 and 1.08, 49 x 960 x 320 1.08
    and 1.08, 49 x 320 x 1280 1.05 and 1.08. One vector takes 1.4 times as long as two.
    """
    if target.vector_bytes < 64 or target.vector_registers < 32:
        return 2
    return 4 if ceil(columns / target.lanes) == 4 else 3


def default_rows(target: Target, vectors: int, rows: int) -> int:
    """Rows of a tile of a product with some rows, where none are chosen: those of the three largest tiles, of up to 8
    rows, that overhang the least.

    `python -m benchmarks.register_tiles` on a Zen 4 with AVX-512, two threads, nothing else running
    (`benchmarks/results/register_tiles-2026-11-23.json`): all 54 products of ResNet-50 take 1.34, 1.04, 1.05, 1.00 and
    1.02 times as long with 4, 5, 6, 7 and 8 rows as with these. Those of four vectors, of 12544 x 147 x 64,
    3136 x 64 x 64, 3136 x 576 x 64 and 3136 x 256 x 64 (7 rows), take 1.32 to 1.39 with 4, 1.01 to 1.06 with 5 and 1.05
    to 1.06 with 6; those of 49 rows and three vectors (7 rows) 1.07 to 1.14 with 5 and 1.07 to 1.22 with 8. Passes over
    K did not pay in an earlier run with another image layout: of about 256 terms each they took 1.00 to 1.41 times as
    long.
    """
    most = min(8, most_rows(target, vectors))
    if rows <= most:
        return rows
    return min(range(most, max(most - 3, 0), -1), key=lambda r: (ceil(rows / r) * r, -r))


def panel_columns(target: Target, vectors: int) -> int:
    """Columns of a panel of the right operand."""
    return vectors * target.lanes


def most_rows(target: Target, vectors: int) -> int:
    """Rows of the largest tile that stays in registers, next to a row of the panel and a broadcast element, which may
    be an operand in memory with vectors of 64 bytes; gcc 12 does so for one vector only, and spills one of the row's
    vectors from the tile of 7 rows by 4, twice for 28 products, which did not slow it.

    Of one to six vectors 14, 14, 9, 7, 5 and 4 rows with 32 registers of 64 bytes, 14, 6, 4, 2, 2 and 1 with 16.
    Measured with AVX2 code (gcc 12, x86-64-v3) on a Xeon, one thread, packed weights, panels of two vectors:
    504 x 512 x 512 takes 2.97 ms with 6 rows and 3.60 ms with 8, which spill; 510 x 512 x 512 takes 2.99 ms, and 122 ms
    where the vectors of the text are AVX-512's (CPU time, the least of 250 and of 60 interleaved runs).
    """
    others = max(4, vectors) if target.vector_bytes == 64 else vectors + 1
    return max(1, min(MOST_ROWS, (target.vector_registers - others) // vectors))
