"""The register tile of a product on a CPU: panels of a few vectors, and as many rows as the registers have room for."""

from __future__ import annotations

from math import ceil

from treadle.schedules.template import check_divides, check_limit
from treadle.target import Target

MOST_ROWS = 14
MOST_VECTORS = 6
SHORT_HEIGHTS = (1, 4, 6)
"""Rows of the tiles that `loop-tail-tiles` writes beside a taller one; BERT-base's tiles have 8. Each is code to
compile, to print and to store once more.

BERT-base of 1, 5, 6 and 12 tokens, a range divided by one length (a Xeon with AVX-512, two threads, nothing else
running, medians of 25 rounds in turn): 1.16, 1.22, 1.16 and 1.03 with (2, 4), 1.16, 1.17, 1.11 and 1.03 with (2, 4, 6),
1.08, 1.15, 1.10 and 1.02 with (1, 2, 4, 6), 1.05, 1.12, 1.07 and 1.00 with (1, 4, 6), in this order within a round; all
compile in 12 to 13 s. DietCode's NN alone took with (2, 4) 0.80 to 1.14 times as long as with (1, 2, 4, 6), 0.97 in the
median of 18 lengths from 1 to 125."""
_LEAST_SUMS = 10
"""Vectors of sums in a tile from which on additions do not wait for each other, where there are tiles with so many: a
processor that starts two products a cycle, each of which takes four, has eight under way. With AVX2 code on a Zen 3, a
tile of 4 rows by 2 vectors took 1.2 to 1.7 times as long for a row as one of 6 rows, for 256 and 1024 terms, 1.0 for
64; 5 rows took 1.0 to 1.2 (2 threads, products of 8 to 784 rows by a constant of 256 columns)."""
_LEAST_DEPTH_OF_FOUR = 128
"""Terms of sums from which on panels of four vectors were not slower than those of three."""


def default_vectors(target: Target, columns: int, depth: int) -> int:
    """Vectors of a panel of a matrix `[depth, columns]`, where none are chosen.

    No more than hold the whole matrix; else, with 32 registers of 64 bytes, three, or four that hold the whole matrix,
    or of which equal panels consist where three leave a narrower last one; else two, since nothing else was measured.
    A narrow panel has few products for each element of A, and blocks of unequal work.

    Convolutions in tiles take twice as long with a third vector that has no columns: those of PP-OCRv4's detector with
    24 outputs took 2120, 1887 and 406 us with it, and 950, 743 and 201 us with two vectors (a Xeon with AVX-512, two
    threads, nothing else running, medians of 25 runs of the model in turn: 8.38 and 5.83 ms); MobileNet-V2 and
    Inception-V3 took 1.00.

    Measured on a Zen 4 with AVX-512, two threads, nothing else running, the same models with three and with four in
    turn, default rows (8 and 7): the time of three divided by that of four, of whole models ResNet-50 1.056 (quartiles
    1.041 and 1.068; 41.3 and 38.9 ms), again 1.044, and 1.016 (0.980 and 1.051) while both were a quarter slower;
    Inception-V3 1.009 (1.002 and 1.023; 58.4 and 57.8 ms); MobileNet-V2 1.013 (0.996 and 1.031), and again 0.990 (0.960
    and 1.010). Of ResNet-50's products (medians of 40 runs of the model) 3136 x 256 x 128 1.16, 784 x 512 x 128 1.13,
    784 x 1152 x 128, 196 x 2304 x 256, 196 x 1024 x 256 and 784 x 512 x 256 1.09, 196 x 1024 x 512 1.08, those of 49
    rows 1.01 to 1.06, 784 x 128 x 512 1.01 and 1.02, 196 x 256 x 1024 1.00 and 1.02; but 3136 x 64 x 256, with few
    terms a tile, 0.93 to 0.96, and BERT's 128 x 64 x 128 0.97. Where three divide the vectors as well, four were 0.95
    to 1.00 in MobileNet-V2's 784 x 32 x 192, 196 x 64 x 384 and 196 x 96 x 576, and 1.14 in 49 x 160 x 960; BERT's
    products with weights were 0.98 to 1.10, and the whole model 0.97 (0.93 and 1.01).

    Before, with AVX-512 code (gcc, -march=native) on a Xeon, one thread, default rows and chunks of each width: the
    time of two vectors divided by that of three and of four (the least of 100 interleaved rounds; M x K x N):
    BERT's 128 x 768 x 2304 1.37 and 1.38, and again 1.19 and 1.14, 128 x 768 x 768 1.19 and 1.02, and again 1.15 and
    1.08 (128 x 768 x 3072 and 128 x 3072 x 768 differed by factors between the two runs, 3.2 and 1.9, 1.05 and 1.76:
    other processes used the memory), 12 of 128 x 64 x 128 1.12 and 1.21, 12 of 128 x 128 x 64 0.93 and 1.11;
    MobileNet-V2's 16 x 32 x 12544 1.07 and 1.03, 96 x 16 x 12544 1.27 and 1.20, 24 x 96 x 3136 1.12 and 1.21,
    192 x 32 x 784 1.04 and 1.11, 384 x 64 x 196 1.12 and 1.17, 64 x 384 x 196 1.21 and 0.85, 576 x 96 x 196 1.21 and
    1.19, 96 x 576 x 196 1.17 and 1.07, 49 x 576 x 160 0.99 and 1.01, 49 x 160 x 960 1.06 and 1.08, 49 x 960 x 320 1.08
    and 1.08, 49 x 320 x 1280 1.05 and 1.08. One vector takes 1.4 times as long as two.
    """
    vectors = max(1, ceil(columns / target.lanes))
    if vectors < 3 or target.vector_bytes < 64 or target.vector_registers < 32:
        return min(vectors, 2)
    only_four = vectors % 4 == 0 and vectors % 3 != 0
    return 4 if vectors == 4 or (only_four and depth >= _LEAST_DEPTH_OF_FOUR) else 3


def default_rows(target: Target, vectors: int, rows: int) -> int:
    """Rows of a tile of a product with some rows, where none are chosen: those of the three largest tiles, of up to 8
    rows and with `_LEAST_SUMS` if there are any, that overhang the least.

    `python -m benchmarks.register_tiles` on a Zen 4 with AVX-512, two threads, nothing else running
    (`benchmarks/results/register_tiles-2026-11-23.json`, of one turn, the only one of three runs in which no group took
    twice as long as in the others): all 54 products of ResNet-50 take 1.08, 1.07, 1.00 and 1.00
    times as long with 5, 6, 7 and 8 rows as with these, and 1.34 with 4 when panels were of three vectors where columns
    exceed 64; each takes 1.00 to 1.15 with 5 and with 6. Passes over K did not pay in an earlier run with another image
    layout: of about 256 terms each they took 1.00 to 1.41 times as long.
    """
    most = min(8, most_rows(target, vectors))
    if rows <= most:
        return rows
    tall = range(most, max(most - 3, 0), -1)
    enough = [each for each in tall if each * vectors >= _LEAST_SUMS] or tall
    return min(enough, key=lambda r: (ceil(rows / r) * r, -r))


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


def sum_registers(target: Target) -> int:
    """Vectors of sums that stay in registers beside operands: all but four with vectors of 64 bytes, else all but two,
    as in the tallest tiles of `most_rows`."""
    return target.vector_registers - (4 if target.vector_bytes == 64 else 2)


def tall_rows(target: Target, vectors: int, rows: int) -> tuple[int, ...]:
    """Rows of tiles worth trying, of a product with some rows: the most that stay in registers, and, of up to eight,
    the two largest."""
    most = min(most_rows(target, vectors), rows)
    return tuple(sorted({most, min(most, 8), max(min(most, 8) - 1, 1)}))


def check_tile(template: str, rows: int, vectors: int, chunk: int, target: Target) -> None:
    """LimitError for a tile of `rows` rows by some vectors that leaves no registers, and for tiles that do not divide a
    chunk of rows; `template` is the one that has them, for the message."""
    most = most_rows(target, vectors)
    check_limit(
        "rows of a tile",
        rows,
        most,
        message=f"{template}: a tile of {rows} rows by {vectors} vectors has {rows - most} rows too many for "
        f"{target.vector_registers} registers",
        accepted=f"at most {most} rows",
    )
    check_divides(
        "rows of a chunk's tiles",
        rows,
        chunk,
        f"{template}: tiles of {rows} rows overrun a chunk of {chunk} rows by {rows - chunk % rows}",
        accepted=f"a chunk that is a multiple of {rows}",
    )
