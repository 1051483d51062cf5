"""Matrix product on a CPU core's matrix unit: packed rows by panels of a constant, in tiles of 32 x 32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import partial
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, bf16, f32, i32
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.graph import MatmulOp, PackedMatmulOp
from treadle.dialects.graph.definition import shape_of, tensor
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.linear import PANEL_COLUMNS
from treadle.dialects.loop import KernelOp, TileRows, whole_row
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, all_of, kernel_builder
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_divides, fewest_cycles, number
from treadle.target import MATRIX_UNITS, Target

TILE_ROWS, HALF_TILE = 32, 16
"""Rows of a product, and of the smallest chunk of a matrix unit; the last product has as few as its unit allows."""
FEW_ROWS = tuple(sorted({rows for unit in MATRIX_UNITS.values() for rows in unit.few_rows}))
"""Rows of the smaller chunks of units that multiply so few."""
_LONGEST_CHUNK = 1024
_MOST_PANELS = 2048
_PACK, _STORE = 0.15, 0.5
"""Cycles to pack a byte of a row, and to store a sum. Estimates."""
_LINE = 10
"""Cycles that a line of a panel takes beside its products. An estimate."""
_START = 2000
"""Cycles to begin a block. An estimate."""
_COMPUTE = 0.4
"""Cycles to compute and round an element of B. An estimate."""
LEAST_ROWS = 8
"""From which on a product by a matrix of few bits is computed on the unit by default: measured in docs/adr/0087."""
_ROUNDED = StringAttr("bf16")
_Product = MatmulOp | PackedMatmulOp
_OVERFLOW = 1.5
"""How many times as long products take where a block's rows leave the second cache. An estimate."""


class MatmulTilesCpu(Template):
    """`C[m, n] = sum_k A[m, k] * B[k, n]` of bf16 or bytes, B a constant in panels, with sums in f32 or i32.

    A block packs `chunk` rows of A to a buffer of its own, as the unit reads them; prologues are computed there:
    conversions, quantisation, windows of images. Then it multiplies them by `panels` panels, 32 x 32 sums at a time,
    which epilogues take from the first cache. All of K is one run, so that sums stay in the unit's tiles; zeros fill
    its last 64 bytes. While a panel is used, the next one is fetched. The unit's values are those of
    `loop.multiply_tiles`, also where plain C computes them.
    """

    name: ClassVar[str] = "matmul_tiles_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("chunk", (*FEW_ROWS, *range(HALF_TILE, _LONGEST_CHUNK + 1, HALF_TILE)), "rows that a block packs"),
        Knob("panels", tuple(range(1, _MOST_PANELS + 1)), "panels of B that a block multiplies by"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, PackedMatmulOp)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        return dict(self.listed(anchor, target)[0])

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        chunk, few = number(choices, "chunk"), target.unit.few_rows
        if chunk not in (*few, HALF_TILE):
            check_divides(
                "rows of a chunk's tiles",
                TILE_ROWS,
                chunk,
                f"matmul_tiles_cpu: tiles of {TILE_ROWS} rows overrun a chunk of {chunk} rows",
                accepted=f"{', '.join(map(str, (*few, HALF_TILE)))}, or a multiple of {TILE_ROWS}",
            )

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """As many blocks are even, and have no more rows and panels than there are."""
        m, panels = _extents(anchor)
        groups = ceil(panels / number(choices, "panels"))
        chunk = number(choices, "chunk")
        rows = target.unit.covering(min(m, chunk)) if chunk < HALF_TILE else _even(m, ceil(m / chunk))
        return {"chunk": rows, "panels": ceil(panels / groups)}

    def in_call(self, anchor: Anchor, whole: Anchor, choices: Choices, target: Target) -> Choices:
        """Blocks end at the last tile of rows that a call needs, which is a whole one but in smaller chunks."""
        del whole
        found, chunk = self.canonical(anchor, choices, target), number(choices, "chunk")
        return {**found, "chunk": max(number(found, "chunk"), min(chunk, TILE_ROWS))}

    def _every(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """As in general, without looking at each chunk up to the longest."""
        m, panels = _extents(anchor)
        chunks = sorted({_even(m, count) for count in range(ceil(m / _LONGEST_CHUNK), ceil(m / HALF_TILE) + 1)})
        groups = {ceil(panels / each) for each in range(1, min(panels, _MOST_PANELS) + 1)}
        even = [chunk for chunk in chunks if chunk <= _LONGEST_CHUNK and _even(m, ceil(m / chunk)) == chunk]
        few = [rows for rows in target.unit.few_rows if rows == target.unit.covering(m)]
        for chunk in (*few, *even):
            for count in sorted(groups):
                yield {"chunk": chunk, "panels": ceil(panels / count)}

    def listed(self, anchor: Anchor, target: Target) -> Sequence[Choices]:
        """Those that are estimated to be the fastest, in order."""
        return fewest_cycles(self._every(anchor, target), lambda choices: estimated_cycles(anchor, choices, target))

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """A is packed for each group of panels; the panels, which nothing computes, are read for each tile of rows."""
        assert isinstance(anchor, _Product)
        chosen, (m, panels) = self.default(anchor, target), _extents(anchor)
        if operand is anchor.operands[1]:
            return Fraction(ceil(m / number(chosen, "chunk"))) if isinstance(anchor, MatmulOp) else None
        return Fraction(ceil(panels / number(chosen, "panels")))

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, _Product)
        return MatmulTilesBody(anchor, choices, target).build(name)


class MatmulRoundedCpu(MatmulTilesCpu):
    """The same of f32 matrices that are rounded to bf16, of which B, `[K, N]`, is computed from constants of few bits.

    A panel of 32 columns is computed and rounded once for all rows of a block, into a buffer that stays in the second
    cache. It computes another result than f32, hence it is a default only for a product that allows it, `precision =
    "bf16"`, of many rows: those of few are multiplied in f32, by what is dequantised in registers.
    """

    name: ClassVar[str] = "matmul_rounded_cpu"
    precision: ClassVar[str] = "bf16"

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and anchor.precision == _ROUNDED and len(shape_of(anchor.b)) == 2

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        return target.unit.bf16 and _extents(anchor)[0] >= LEAST_ROWS


def estimated_cycles(anchor: Anchor, choices: Choices, target: Target) -> float:
    """Cycles until the last core has finished its blocks."""
    assert isinstance(anchor, _Product)
    m, panels = _extents(anchor)
    chunk, each = number(choices, "chunk"), number(choices, "panels")
    depth = padded_depth(anchor) * byte_width(multiplied(anchor))
    products = each * target.unit.cycles(min(chunk, m)) * depth / 64
    if chunk * depth > target.l2_bytes // 2:
        products *= _OVERFLOW
    panel = _LINE * depth * 32 / 64 if isinstance(anchor, PackedMatmulOp) else _COMPUTE * padded_depth(anchor) * 32
    cycles = products + each * panel + _PACK * chunk * depth + _STORE * chunk * each * 32 + _START
    blocks = ceil(m / chunk) * ceil(panels / each) * prod(anchor.shape[:-2])
    return cycles * ceil(blocks / target.cores)


def _extents(anchor: Anchor) -> tuple[int, int]:
    """Rows of A, and panels of B."""
    assert isinstance(anchor, _Product)
    return anchor.shape[-2], ceil(anchor.shape[-1] / PANEL_COLUMNS)


def _even(m: int, count: int) -> int:
    """The rows of even chunks, of which there are so many, or fewer: half a tile, or whole tiles."""
    rows = ceil(m / count)
    return HALF_TILE if rows <= HALF_TILE else ceil(rows / TILE_ROWS) * TILE_ROWS


# The kernel of a product on a CPU core's matrix unit: blocks of rows, by some panels of columns.


def multiplied(anchor: MatmulOp | PackedMatmulOp) -> Attribute:
    """The type of the elements of A that are multiplied."""
    return bf16 if isinstance(anchor, MatmulOp) else tensor(anchor.a).get_element_type()


def padded_depth(anchor: MatmulOp | PackedMatmulOp) -> int:
    """K with the zeros that fill rows of 64 bytes."""
    whole = whole_row(multiplied(anchor))
    return ceil(anchor.reduction_extent / whole) * whole


class MatmulTilesBody:
    """Writes the kernel of one product."""

    def __init__(self, anchor: MatmulOp | PackedMatmulOp, choices: Choices, target: Target):
        self.anchor, self.unit = anchor, target.unit
        *self.batch, self.m, self.n = anchor.shape
        self.k, self.depth = anchor.reduction_extent, padded_depth(anchor)
        self.element, self.sum = multiplied(anchor), anchor.type.get_element_type()
        self.panels = _extents(anchor)[1]
        self.chunk, self.each = number(choices, "chunk"), number(choices, "panels")
        self.left = min(self.chunk, TILE_ROWS), whole_row(self.element)
        """Rows and elements of 64 bytes that lie together, as the unit reads them."""
        self.b = kernel_builder(anchor.operands, anchor.type)

    def build(self, name: str) -> KernelOp:
        b = self.b
        groups, chunks = ceil(self.panels / self.each), ceil(self.m / self.chunk)
        first_panel = (b.block % groups) * self.each
        rest = b.block // groups
        first_row = (rest % chunks) * self.chunk
        self.batch_index = (rest // chunks).delinearize(self.batch) if self.batch else []
        rows = self._rows(first_row)
        words = self._words() if isinstance(self.anchor, MatmulOp) else None
        with b.loop("panel", self.each) as p:
            panel = first_panel + p
            with b.when(None if self.panels % self.each == 0 else panel < self.panels):
                if words is not None:
                    self._compute_panel(words, panel)
                self._panel(rows, first_row, panel, words)
        comment = f"C[{self.m}, {self.n}] = A[{self.m}, {self.k}] * B[{self.k}, {self.n}]"
        return b.kernel(name, self.anchor.operands, self.anchor.type, groups * chunks * prod(self.batch), 1, comment)

    def _rows(self, first_row: Index) -> SSAValue:
        """The block's rows of A, with zeros behind; those beyond the matrix are any of its rows."""
        b, height, (side, whole) = self.b, self.chunk, self.left
        rows = b.alloc("rows", [height // side, self.depth // whole, side, whole], self.element)
        inside = self.m % self.chunk == 0
        is_rounded = isinstance(self.anchor, MatmulOp)
        # Not marked as a vector loop, so that it is split where a prologue divides k: at the rows of windows.
        with b.loop("tile", height // side) as tile, b.loop("m", side) as m:
            row = first_row + tile * side + m
            row = row if inside else row.min(self.m - 1)
            with b.tasks(["k"], repeat(self.k)) as (k,):
                value = b.load(b.inputs[0], [*self.batch_index, row, k])
                value = b.truncated(value, self.element) if is_rounded else value
                b.store(value, rows, [tile, k // whole, m, k % whole])
            if self.depth > self.k:
                with b.tasks(["k"], repeat(self.depth - self.k), vector=True) as (k,):
                    k = k + self.k
                    b.store(b.constant(0, self.element), rows, [tile, k // whole, m, k % whole])
        return rows

    def _words(self) -> SSAValue:
        """The buffer of a computed panel, in pairs of bf16, with zeros behind K."""
        b, pairs = self.b, ceil(self.k / 2)
        words = b.alloc("words", [self.depth // 2, PANEL_COLUMNS], i32)
        if self.depth // 2 > pairs:
            with b.tasks(["k", "n"], repeat(self.depth // 2 - pairs, PANEL_COLUMNS), vector=True) as (k, n):
                b.store(b.constant(0, i32), words, [k + pairs, n])
        return words

    def _compute_panel(self, words: SSAValue, panel: Index) -> None:
        """Rounds the columns of B of a panel to pairs; those that do not exist are zeros."""
        b, zero = self.b, self.b.constant(0, f32)
        # Halves are loops of their own, since constants lie in panels of as many vectors.
        pairs = repeat(ceil(self.k / 2), PANEL_COLUMNS // HALF_TILE, HALF_TILE)
        with b.tasks(["k", "h", "n"], pairs, vector=True) as (k, h, n):
            column = panel * PANEL_COLUMNS + h * HALF_TILE + n
            first = column if self.n % HALF_TILE else panel * PANEL_COLUMNS + h * HALF_TILE
            exists = [first < self.n] if self.n % PANEL_COLUMNS else []
            even, odd = (
                b.load(b.inputs[1], [row, column], where, None if where is None else zero)
                for row, where in (
                    (k * 2, all_of(exists)),
                    (k * 2 + 1, all_of([*exists, *([k * 2 + 1 < self.k] if self.k % 2 else [])])),
                )
            )
            b.store(b.round_pair(even, odd), words, [k, h * HALF_TILE + n])

    def _panel(self, rows: SSAValue, first_row: Index, panel: Index, words: SSAValue | None) -> None:
        """The products of the block's rows with one panel. The last few rows of the matrix may be less than a tile."""
        b = self.b
        rest, tile = self.m % TILE_ROWS, partial(self._tile, rows, panel, words)
        with b.loop("m", self.chunk, step=TILE_ROWS) as m:
            row = first_row + m
            covered = self.m % self.chunk == 0
            with b.when(None if covered else row < self.m):
                if self.chunk <= HALF_TILE:
                    tile(m, row, self.unit.covering(min(self.m, self.chunk)))
                elif rest == 0:
                    tile(m, row, TILE_ROWS)
                else:
                    with b.when(row < self.m - rest):
                        tile(m, row, TILE_ROWS, whole=True)
                    with b.when(row >= self.m - rest):
                        tile(m, row, self.unit.covering(rest))

    def _tile(
        self,
        rows: SSAValue,
        panel: Index,
        words: SSAValue | None,
        m: Index,
        row: Index,
        height: int,
        *,
        whole: bool = False,
    ) -> None:
        """Multiplies some rows and stores those sums that exist; of a `whole` tile all rows do."""
        b = self.b
        acc = b.alloc("acc", [height, PANEL_COLUMNS], self.sum)
        # Each tile of rows asks for a share of the panel that follows, of which 64 bytes of a row use a line a column.
        lines = ceil(PANEL_COLUMNS / ceil(self.chunk / TILE_ROWS))
        ahead = (panel + 1) * (self.depth * PANEL_COLUMNS) + (m // TILE_ROWS) * (lines * self.depth)
        side, step = self.left
        left = TileRows(step, (0,), side * step)
        places, extents = ((acc, [0, 0]), (rows, [m // side, 0, 0, 0])), (height, self.depth)
        if words is None:
            b.multiply_tiles(*places, (b.inputs[1], [panel, 0, 0, 0]), extents, left, ahead, lines)
        else:
            b.multiply_tiles(*places, (words, [0, 0]), extents, left)
        # Halves are loops of their own: images lie in blocks of as many channels.
        halves = repeat(PANEL_COLUMNS // HALF_TILE, HALF_TILE)
        # Rows are a loop at once, which `loop-skip-padding` ends where those of a call do.
        with b.loop("r", min(height, self.m)) as r, b.tasks(["h", "c"], halves, vector=True) as (h, c):
            n = h * HALF_TILE + c
            line, column = row + r, panel * PANEL_COLUMNS + n
            inside = [line < self.m] if self.m % height and not whole else []
            # Of whole halves, all columns of one agree: no lane of a vector is masked.
            first = column if self.n % HALF_TILE else panel * PANEL_COLUMNS + h * HALF_TILE
            inside += [first < self.n] if self.n % PANEL_COLUMNS else []
            b.store(b.load(acc, [r, n]), b.output, [*self.batch_index, line, column], all_of(inside))
