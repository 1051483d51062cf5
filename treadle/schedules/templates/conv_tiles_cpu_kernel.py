"""The kernel of a convolution on a CPU core's matrix unit: some rows of the result, by some panels of filters."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import FusedOp, PackedConvOp
from treadle.dialects.graph.linear import PANEL_COLUMNS
from treadle.dialects.loop import KernelOp
from treadle.dialects.task import repeat
from treadle.schedules.index_value import Index, Predicate, all_of
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.template import Choices, number
from treadle.schedules.templates.conv_tiles_rows import TILE_ROWS, ConvRows
from treadle.target import Target

Place = tuple[SSAValue, Sequence[Index | int]]
_VECTOR = 16
"""Lanes of a vector of sums, half of a tile's columns."""


class ConvTilesKernel:
    """Writes the kernel of one convolution."""

    def __init__(self, anchor: PackedConvOp, choices: Choices, target: Target):
        assert isinstance(anchor.x.type, TensorType) and isinstance(anchor.panels.type, TensorType)
        self.anchor, self.rows_of = anchor, ConvRows.of(anchor, target.unit)
        self.images, self.blocks, *_, self.lanes = anchor.image
        self.element, self.sum = anchor.x.type.get_element_type(), anchor.type.get_element_type()
        self.panels, *panel = anchor.panels.type.get_shape()
        self.panel_size = prod(panel)
        self.group, self.groups, self.each = (number(choices, name) for name in ("group", "groups", "panels"))
        self.chunk, self.height = self.group * self.groups, self.rows_of.result[0]
        self.positions = self.rows_of.positions(self.group)
        self.b = KernelBuilder([anchor.x.type, anchor.panels.type], anchor.type)

    def build(self, name: str) -> KernelOp:
        b = self.b
        columns, chunks = ceil(self.panels / self.each), ceil(self.height / self.chunk)
        first_panel, rest = b.block % columns * self.each, b.block // columns
        self.first, self.image = rest % chunks * self.chunk, rest // chunks
        copy = None if self._reads_image() else self._copy()
        with b.loop("panel", self.each) as p:
            panel = first_panel + p
            with (
                b.when(panel < self.panels if self.panels % self.each else None),
                b.loop("group", self.groups) as g,
                b.when(self._exists(g * self.group)),
            ):
                acc = b.alloc("acc", [self.positions, PANEL_COLUMNS], self.sum)
                base = self._products(acc, copy, g, panel)
                self._store(acc, g, panel, base)
        comment = f"convolution of {self.anchor.x.type} by {self.panels} panels of filters"
        operands = [self.anchor.x, self.anchor.panels]
        return b.kernel(name, operands, self.anchor.type, columns * chunks * self.images, 1, comment)

    def _exists(self, row: Index) -> Predicate | None:
        """When the result has a row of the chunk; None where all chunks do."""
        return self.first + row < self.height if self.height % self.chunk else None

    def _reads_image(self) -> bool:
        """Whether tiles read the image as it is: its pixels are rows, none is computed here, and all lanes are
        channels."""
        whole = self.anchor.channels.value.data % self.lanes == 0
        return self.rows_of.is_pixelwise and whole and self.positions <= self.height and not self._is_computed()

    def _is_computed(self) -> bool:
        """Whether the kernel itself computes the image."""
        group, owner = self.anchor.parent_op(), self.anchor.x.owner
        return isinstance(group, FusedOp) and isinstance(owner, Operation) and owner.parent_op() is group

    def _pixel(self, row: Index, column: Index) -> list[Index]:
        """The pixel of the image, or of the result, that is at a row and a column."""
        if not self.rows_of.is_pixelwise:
            return [row, column]
        width = self.anchor.image[3]
        return [row // width, row % width]

    def _copy(self) -> SSAValue:
        """The chunk's rows of the image with zeros around it, `[blocks, pixels, lanes]`."""
        b, rows_of = self.b, self.rows_of
        own, pixels = rows_of.pixels(self.chunk, self.group)
        copy = b.alloc("image", [self.blocks, pixels, self.lanes], self.element)
        top = self.first * rows_of.strides[0] - rows_of.before[0]
        count, stride = rows_of.sorted_rows(self.chunk), rows_of.strides[0]
        with b.loop("block", self.blocks) as block:
            for remainder in range(stride):
                with b.loop("row", count) as row:
                    source = top + (row * stride + remainder)
                    place = (row + rows_of.row_of(remainder, self.chunk)) * rows_of.pitch
                    self._copy_row(copy, block, source, place)
            self._zeros(copy, block, b.index(own), pixels - own)
        return copy

    def _copy_row(self, copy: SSAValue, block: Index, source: Index, place: Index) -> None:
        """A row of the image, and the zeros around it; a row of zeros outside of the image."""
        b, rows_of = self.b, self.rows_of
        (height, width), left = rows_of.image, rows_of.before[1]
        first = (ceil(self.height / self.chunk) - 1) * self.chunk * rows_of.strides[0] - rows_of.before[0]
        reaches_out = first + rows_of.sorted_rows(self.chunk) * rows_of.strides[0] > height
        inside = all_of([source >= 0 if rows_of.before[0] else None, source < height if reaches_out else None])
        with b.when(inside):
            self._copy_pixels(copy, block, source, place + left)
        if inside is not None:
            with b.when(b.binary("eq", inside.value, b.constant(0, inside.value.type))):
                self._zeros(copy, block, place + left, width)
        self._zeros(copy, block, place, left)
        self._zeros(copy, block, place + (left + width), rows_of.pitch - left - width)

    def _copy_pixels(self, copy: SSAValue, block: Index, row: Index, place: Index) -> None:
        """The pixels of a row; lanes beyond the channels are zeros."""
        b, channels, width = self.b, self.anchor.channels.value.data, self.rows_of.image[1]
        rest = channels % self.lanes
        if rest == 0:
            self._copy_lanes(copy, block, row, place, self.lanes)
            return
        if self.blocks > 1:
            with b.when(block < self.blocks - 1):
                self._copy_lanes(copy, block, row, place, self.lanes)
        with b.when(block >= self.blocks - 1 if self.blocks > 1 else None):
            self._copy_lanes(copy, block, row, place, rest)
            with b.tasks(["x", "c"], repeat(width, self.lanes - rest), vector=True) as (x, c):
                b.store(b.constant(0, self.element), copy, [block, place + x, c + rest])

    def _copy_lanes(self, copy: SSAValue, block: Index, row: Index, place: Index, lanes: int) -> None:
        """The first lanes of a row's pixels, in halves of a tile's columns, which are vectors."""
        b = self.b
        half = _VECTOR if lanes % _VECTOR == 0 else lanes
        with b.tasks(["x", "h", "c"], repeat(self.rows_of.image[1], lanes // half, half), vector=True) as (x, h, c):
            lane = h * half + c
            value = b.load(b.inputs[0], [self.image, block, *self._pixel(row, x), lane])
            b.store(value, copy, [block, place + x, lane])

    def _zeros(self, copy: SSAValue, block: Index, place: Index, count: int) -> None:
        if count:
            b = self.b
            with b.tasks(["x", "c"], repeat(count, self.lanes), vector=True) as (x, c):
                b.store(b.constant(0, self.element), copy, [block, place + x, c])

    def _products(self, acc: SSAValue, copy: SSAValue | None, g: Index, panel: Index) -> Index:
        """The sums of a group of rows; which row of the chunk the first of them is."""
        b, rows_of = self.b, self.rows_of
        row = g * self.group
        if copy is None:
            width = self.anchor.image[3]
            # The last tiles are those that end with the image.
            base = (self.first + row).min(self.height - self.positions)
            left = rows_of.tile_rows([0], self.lanes, self.height)
        else:
            width, base = 1, row
            left = rows_of.tile_rows(rows_of.taps(self.chunk), self.lanes, rows_of.pixels(self.chunk, self.group)[1])
        steps = self.positions // TILE_ROWS + (self.positions % TILE_ROWS > 0)
        lines = ceil(PANEL_COLUMNS / (steps * self.groups))

        def tile(m: Index, height: int) -> None:
            # Each tile of rows asks for a share of the panel that follows.
            share = (g * steps + m // TILE_ROWS) * (lines * (self.panel_size // PANEL_COLUMNS))
            ahead = (panel + 1) * self.panel_size + share
            if copy is None:
                pixel = base + m
                place: Place = (b.inputs[0], [self.image, 0, pixel // width, pixel % width, 0])
            else:
                place = (copy, [0, (base * rows_of.flat + m) * rows_of.strides[1], 0])
            extents = (height, self.anchor.reduction_extent)
            b.multiply_tiles((acc, [m, 0]), place, (b.inputs[1], [panel, 0, 0, 0]), extents, left, ahead, lines)

        whole = self.positions // TILE_ROWS * TILE_ROWS
        if whole:
            with b.loop("m", whole, step=TILE_ROWS) as m:
                tile(m, TILE_ROWS)
        if self.positions > whole:
            tile(b.index(whole), self.positions - whole)
        return base if copy is None else self.first + row

    def _store(self, acc: SSAValue, g: Index, panel: Index, base: Index) -> None:
        """Stores the sums of those positions that are pixels of the result."""
        b, rows_of = self.b, self.rows_of
        # Halves are loops of their own, which are vectors.
        halves = repeat(rows_of.result[1], PANEL_COLUMNS // _VECTOR, _VECTOR)
        with b.loop("y", self.group) as y:
            row = g * self.group + y
            with b.when(self._exists(row)), b.tasks(["x", "h", "c"], halves, vector=True) as (x, h, c):
                line, lane = self.first + row, h * _VECTOR + c
                value = b.load(acc, [(line - base) * rows_of.flat + x, lane])
                b.store(value, b.output, [self.image, panel, *self._pixel(line, x), lane])


__all__ = ["ConvTilesKernel"]
