"""The kernel of a product on a CPU core's matrix unit: blocks of rows, by some panels of columns."""

from __future__ import annotations

from math import ceil, prod

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from treadle.dialects.graph import PackedMatmulOp
from treadle.dialects.graph.linear import PANEL_COLUMNS
from treadle.dialects.loop import SIDE_BY_SIDE, KernelOp, TileRows, whole_row
from treadle.dialects.task import repeat
from treadle.schedules.index_value import Index, all_of
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.template import Choices, number
from treadle.target import Target

TILE_ROWS, HALF_TILE = 32, 16
"""Rows of a product, and of the smallest chunk; the last product has as few as its unit allows."""


def padded_depth(anchor: PackedMatmulOp) -> int:
    """K with the zeros that fill rows of 64 bytes."""
    assert isinstance(anchor.a.type, TensorType)
    whole = 16 * SIDE_BY_SIDE[anchor.a.type.get_element_type()]
    return ceil(anchor.reduction_extent / whole) * whole


class MatmulTilesBody:
    """Writes the kernel of one product."""

    def __init__(self, anchor: PackedMatmulOp, choices: Choices, target: Target):
        assert isinstance(anchor.a.type, TensorType) and isinstance(anchor.panels.type, TensorType)
        self.anchor, self.unit = anchor, target.unit
        *self.batch, self.m, self.n = anchor.shape
        self.k, self.depth = anchor.reduction_extent, padded_depth(anchor)
        self.element, self.sum = anchor.a.type.get_element_type(), anchor.type.get_element_type()
        self.panels = anchor.panels.type.get_shape()[0]
        self.chunk, self.each = number(choices, "chunk"), number(choices, "panels")
        self.b = KernelBuilder([anchor.a.type, anchor.panels.type], anchor.type)

    def build(self, name: str) -> KernelOp:
        b = self.b
        groups, chunks = ceil(self.panels / self.each), ceil(self.m / self.chunk)
        first_panel = (b.block % groups) * self.each
        rest = b.block // groups
        first_row = (rest % chunks) * self.chunk
        self.batch_index = (rest // chunks).delinearize(self.batch) if self.batch else []
        rows = self._rows(first_row)
        with b.loop("panel", self.each) as p:
            panel = first_panel + p
            with b.when(None if self.panels % self.each == 0 else panel < self.panels):
                self._panel(rows, first_row, panel)
        comment = f"C[{self.m}, {self.n}] = A[{self.m}, {self.k}] * B[{self.k}, {self.n}]"
        operands = [self.anchor.a, self.anchor.panels]
        return b.kernel(name, operands, self.anchor.type, groups * chunks * prod(self.batch), 1, comment)

    def _rows(self, first_row: Index) -> SSAValue:
        """The block's rows of A, with zeros behind; those beyond the matrix are any of its rows."""
        b, height = self.b, ceil(self.chunk / HALF_TILE) * HALF_TILE
        rows = b.alloc("rows", [height, self.depth], self.element)
        inside = self.m % self.chunk == 0 and self.chunk % HALF_TILE == 0
        # Not marked as a vector loop, so that it is split where a prologue divides k: at the rows of windows.
        with b.tasks(["m", "k"], repeat(height, self.k)) as (m, k):
            row = first_row + m
            row = row if inside else row.min(self.m - 1)
            b.store(b.load(b.inputs[0], [*self.batch_index, row, k]), rows, [m, k])
        if self.depth > self.k:
            with b.tasks(["m", "k"], repeat(height, self.depth - self.k), vector=True) as (m, k):
                b.store(b.constant(0, self.element), rows, [m, k + self.k])
        return rows

    def _panel(self, rows: SSAValue, first_row: Index, panel: Index) -> None:
        """The products of the block's rows with one panel. The last few rows of the matrix may be less than a tile."""
        b = self.b
        rest = self.m % TILE_ROWS
        with b.loop("m", self.chunk, step=TILE_ROWS) as m:
            row = first_row + m
            covered = self.m % self.chunk == 0
            with b.when(None if covered else row < self.m):
                if self.chunk == HALF_TILE:
                    self._tile(rows, m, row, panel, self.unit.covering(min(self.m, HALF_TILE)))
                elif rest == 0:
                    self._tile(rows, m, row, panel, TILE_ROWS)
                else:
                    with b.when(row < self.m - rest):
                        self._tile(rows, m, row, panel, TILE_ROWS, whole=True)
                    with b.when(row >= self.m - rest):
                        self._tile(rows, m, row, panel, self.unit.covering(rest))

    def _tile(self, rows: SSAValue, m: Index, row: Index, panel: Index, height: int, *, whole: bool = False) -> None:
        """Multiplies some rows and stores those sums that exist; of a `whole` tile all rows do."""
        b = self.b
        acc = b.alloc("acc", [height, PANEL_COLUMNS], self.sum)
        # Each tile of rows asks for a share of the panel that follows, of which 64 bytes of a row use a line a column.
        lines = ceil(PANEL_COLUMNS / ceil(self.chunk / TILE_ROWS))
        ahead = (panel + 1) * (self.depth * PANEL_COLUMNS) + (m // TILE_ROWS) * (lines * self.depth)
        left = TileRows(self.depth, (0,), whole_row(self.element))
        places = (acc, [0, 0]), (rows, [m, 0]), (b.inputs[1], [panel, 0, 0, 0])
        b.multiply_tiles(*places, (height, self.depth), left, ahead, lines)
        # Halves are loops of their own: images lie in blocks of as many channels.
        halves = repeat(height, PANEL_COLUMNS // HALF_TILE, HALF_TILE)
        with b.tasks(["r", "h", "c"], halves, vector=True) as (r, h, c):
            n = h * HALF_TILE + c
            line, column = row + r, panel * PANEL_COLUMNS + n
            inside = [line < self.m] if self.m % height and not whole else []
            # Of whole halves, all columns of one agree: no lane of a vector is masked.
            first = column if self.n % HALF_TILE else panel * PANEL_COLUMNS + h * HALF_TILE
            inside += [first < self.n] if self.n % PANEL_COLUMNS else []
            b.store(b.load(acc, [r, n]), b.output, [*self.batch_index, line, column], all_of(inside))
