"""Convolution on a CPU core's matrix unit: windows of an image are read by the unit, without being written apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import FusedOp, PackedConvOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.linear import PANEL_COLUMNS
from treadle.dialects.loop import KernelOp, TileRows
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat, spatial
from treadle.schedules.kernel_builder import Index, Predicate, all_of, kernel_builder
from treadle.schedules.template import Anchor, Choices, Knob, Template, fewest_cycles, number
from treadle.target import MatrixUnit, Target

# Where the rows of a convolution's tiles lie: pixels of an image, or of a block's copy of some of its rows.
#
# The copy has zeros around the image, so that a window is read by taps at fixed distances. Rows of the copy follow one
# another, and all pixels that an output's row begins at are one run of positions, `flat` of which there are from one
# row to the next one: tiles take up to 32 positions of several rows, and what lies between two rows is computed in
# vain. The zeros behind a row are those in front of the next one. Rows are sorted by their remainder by the stride, so
# that taps of one remainder find their rows side by side.

TILE_ROWS = 32
"""Of a product; the last one has as few as its unit allows."""


@dataclass(frozen=True)
class ConvRows:
    """The rows of a convolution's result, and the pixels under them. A pixel-wise convolution has one row a pixel.

    image, result: rows and columns of them
    before: zeros in front of rows and columns
    unit: what multiplies the tiles
    """

    image: tuple[int, int]
    result: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    before: tuple[int, int]
    dilations: tuple[int, int]
    is_pixelwise: bool
    unit: MatrixUnit

    @staticmethod
    def of(anchor: PackedConvOp, unit: MatrixUnit) -> ConvRows:
        lists = [anchor.list_of(name) for name in ("kernel", "strides", "pads", "dilations")]
        kernel, strides, pads, dilations = ((each[0], each[1]) for each in lists)
        height, width = anchor.image[2:4]
        result = anchor.shape[2], anchor.shape[3]
        if kernel == strides == (1, 1) and not any(anchor.list_of("pads")):
            pixels = (height * width, 1)
            return ConvRows(pixels, pixels, kernel, strides, (0, 0), (1, 1), True, unit)
        return ConvRows((height, width), result, kernel, strides, pads, dilations, False, unit)

    @property
    def _span(self) -> int:
        """Pixels from the first to the last one under a row of the result."""
        return (self.result[1] - 1) * self.strides[1] + (self.kernel[1] - 1) * self.dilations[1] + 1

    @property
    def pitch(self) -> int:
        """Pixels of a row of the copy."""
        before = self.before[1]
        needed = max(before + self.image[1], self._span - before)
        return ceil(needed / self.strides[1]) * self.strides[1]

    @property
    def flat(self) -> int:
        """Positions from a row of the result to the next one."""
        return self.pitch // self.strides[1]

    def read_rows(self, rows: int) -> int:
        """The image's rows under so many rows of the result."""
        return (rows - 1) * self.strides[0] + (self.kernel[0] - 1) * self.dilations[0] + 1

    def sorted_rows(self, rows: int) -> int:
        """Rows of the copy of each remainder; those that no window reads hold the zeros behind the row before."""
        return ceil(self.read_rows(rows) / self.strides[0])

    def positions(self, group: int) -> int:
        """Of so many rows of the result, in whole tiles and a smaller one."""
        return self.unit.covering((group - 1) * self.flat + self.result[1])

    def taps(self, rows: int) -> list[int]:
        """The pixels of the copy under so many rows from a window's first one, row by row of the window."""
        taps: list[int] = []
        for row in range(self.kernel[0]):
            step, remainder = divmod(row * self.dilations[0], self.strides[0])
            first = (remainder * self.sorted_rows(rows) + step) * self.pitch
            taps += [first + column * self.dilations[1] for column in range(self.kernel[1])]
        return taps

    def row_of(self, read: int, rows: int) -> int:
        """Where the copy has the row that is the `read`-th of those under so many rows of the result."""
        step, remainder = divmod(read, self.strides[0])
        return remainder * self.sorted_rows(rows) + step

    def pixels(self, rows: int, group: int) -> tuple[int, int]:
        """The pixels of the copy under so many rows in groups: those of its rows, and all that tiles read."""
        last = ((rows - group) * self.flat + self.positions(group) - 1) * self.strides[1] + max(self.taps(rows))
        own = self.strides[0] * self.sorted_rows(rows) * self.pitch
        return own, max(own, last + 1)

    def tile_rows(self, taps: list[int], lanes: int, apart: int) -> TileRows:
        """A tile's rows, of taps of pixels; blocks of channels are so many pixels apart."""
        return TileRows(self.strides[1] * lanes, tuple(tap * lanes for tap in taps), apart * lanes)


_MOST_POSITIONS = 128
"""Of a group, so that its sums stay in the first cache beside a panel: with 256, ResNet-50 took 1.02 of the time, and
MobileNet-V2 1.05, on the machine of docs/adr/0051."""
_MOST_ROWS = 4096
_MOST_PANELS = 256
_READ, _COPY, _STORE = 0.1, 0.1, 0.3
"""Cycles to read a byte of the image, which is in another core's cache or beyond it, to copy it, and to store a sum.
Estimates; without the first one, ResNet-50 took 1.07 of the time, since blocks of panels read all of an image."""
_LINE = 10
"""Cycles that a line of a panel takes beside its products. An estimate."""
_GROUP, _START = 100, 2000
"""Cycles to begin a group, and a block. Estimates."""


class ConvTilesCpu(Template):
    """`graph.packed_conv`: a block computes `groups` groups of `group` rows of the result by `panels` panels.

    It copies the rows of the image under them, with zeros around it, to a buffer of its own; prologues are computed
    there. Tiles read the windows from the copy, whose rows overlap, at a distance for each offset of the window: no
    window is written apart. A pixel-wise convolution of a stored image reads that. The sums of a group stay in the
    first cache until they are stored, which epilogues fuse to. While a panel is used, the next one is fetched.
    Source: Georganas et al., "Anatomy of high-performance deep learning convolutions on SIMD architectures", SC 2018,
    for the direct form; the flat run of positions over several rows is that of Anderson et al., "Low-memory GEMM-based
    convolution algorithms for deep neural networks", arXiv:1709.03395.
    """

    name: ClassVar[str] = "conv_tiles_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("group", tuple(range(1, _MOST_ROWS + 1)), "rows of the result whose sums are stored together"),
        Knob("groups", tuple(range(1, _MOST_ROWS + 1)), "groups that a block computes"),
        Knob("panels", tuple(range(1, _MOST_PANELS + 1)), "panels of filters that a block multiplies by"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, PackedConvOp)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        return dict(self.listed(anchor, target)[0])

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """As many blocks are even, and have no more rows and panels than there are."""
        rows, panels = _extents(anchor, target)
        group = min(number(choices, "group"), rows)
        all_groups = ceil(rows / group)
        groups = ceil(all_groups / ceil(all_groups / number(choices, "groups")))
        return {"group": group, "groups": groups, "panels": ceil(panels / ceil(panels / number(choices, "panels")))}

    def _every(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """As in general, without looking at each number: groups of few positions, and those numbers of groups and
        panels that give different numbers of blocks."""
        rows, panels = _extents(anchor, target)
        each = sorted({ceil(panels / count) for count in range(1, panels + 1)} & set(range(1, _MOST_PANELS + 1)))
        for group in _groups(anchor, target):
            all_groups = ceil(rows / group)
            counts = sorted({ceil(all_groups / blocks) for blocks in range(1, min(all_groups, 64) + 1)})
            for groups in counts:
                if group * groups <= _MOST_ROWS:
                    yield from ({"group": group, "groups": groups, "panels": count} for count in each)

    def listed(self, anchor: Anchor, target: Target) -> Sequence[Choices]:
        """Those that are estimated to be the fastest, in order."""
        return fewest_cycles(self._every(anchor, target), lambda choices: estimated_cycles(anchor, choices, target))

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """Rows under neighbouring blocks overlap, and are copied for each group of panels; the panels, which nothing
        computes, are read for each tile of rows."""
        assert isinstance(anchor, PackedConvOp)
        if operand is anchor.panels:
            return None
        choices, rows_of = self.default(anchor, target), ConvRows.of(anchor, target.unit)
        chunk = number(choices, "group") * number(choices, "groups")
        read = min(rows_of.read_rows(chunk), rows_of.image[0]) * ceil(rows_of.result[0] / chunk)
        return Fraction(read * ceil(_extents(anchor, target)[1] / number(choices, "panels")), rows_of.image[0])

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, PackedConvOp)
        return ConvTilesKernel(anchor, choices, target).build(name)


def estimated_cycles(anchor: Anchor, choices: Choices, target: Target) -> float:
    """Cycles until the last core has finished its blocks."""
    assert isinstance(anchor, PackedConvOp) and isinstance(anchor.x.type, TensorType)
    rows, panels = _extents(anchor, target)
    group, groups, each = (number(choices, name) for name in ("group", "groups", "panels"))
    rows_of, width = ConvRows.of(anchor, target.unit), byte_width(anchor.x.type.get_element_type())
    positions, steps = rows_of.positions(group), anchor.reduction_extent * width // 64
    products = groups * steps * target.unit.cycles(positions)
    stores = groups * (group * rows_of.result[1] * PANEL_COLUMNS * _STORE + _GROUP)
    cycles = each * (products + stores + steps * PANEL_COLUMNS * _LINE) + _START
    cycles += _READ * min(rows_of.read_rows(group * groups), rows_of.image[0]) * rows_of.image[1] * anchor.image[1] * 64
    if not rows_of.is_pixelwise or positions > rows:
        cycles += _COPY * rows_of.pixels(group * groups, group)[1] * anchor.image[1] * 64
    blocks = ceil(rows / (group * groups)) * ceil(panels / each) * anchor.image[0]
    return cycles * ceil(blocks / target.cores)


def _extents(anchor: Anchor, target: Target) -> tuple[int, int]:
    """Rows of an image's result, and panels of the filters."""
    assert isinstance(anchor, PackedConvOp) and isinstance(anchor.panels.type, TensorType)
    return ConvRows.of(anchor, target.unit).result[0], anchor.panels.type.get_shape()[0]


def _groups(anchor: Anchor, target: Target) -> list[int]:
    """Rows of groups that are worth trying: whole tiles of pixels, or few enough rows."""
    assert isinstance(anchor, PackedConvOp)
    rows_of = ConvRows.of(anchor, target.unit)
    rows = rows_of.result[0]
    if rows_of.is_pixelwise:
        wanted = range(target.unit.least_rows, _MOST_POSITIONS + 1, target.unit.least_rows)
        return [group for group in wanted if group <= rows] or [rows]
    return [group for group in range(1, rows + 1) if rows_of.positions(group) <= _MOST_POSITIONS] or [1]


# The kernel of a convolution on a CPU core's matrix unit: some rows of the result, by some panels of filters.

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
        self.b = kernel_builder([anchor.x, anchor.panels], anchor.type)

    def build(self, name: str) -> KernelOp:
        b = self.b
        blocks = spatial(self.images, ceil(self.height / self.chunk), ceil(self.panels / self.each))
        self.image, chunk, column = b.task_of_block(blocks)
        first_panel, self.first = column * self.each, chunk * self.chunk
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
        return b.kernel(name, operands, self.anchor.type, blocks.workers, 1, comment)

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
