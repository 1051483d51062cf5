"""Convolution on a CPU core's matrix unit: windows of an image are read by the unit, without being written apart."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import ceil
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import PackedConvOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.linear import PANEL_COLUMNS
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.template import Anchor, Choices, Knob, Template, number
from treadle.schedules.templates.conv_tiles_cpu_kernel import ConvTilesKernel
from treadle.schedules.templates.conv_tiles_rows import ConvRows
from treadle.target import Target

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
        return dict(min(self.candidates(anchor, target), key=lambda c: estimated_cycles(anchor, c, target)))

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """As many blocks are even, and have no more rows and panels than there are."""
        rows, panels = _extents(anchor, target)
        group = min(number(choices, "group"), rows)
        all_groups = ceil(rows / group)
        groups = ceil(all_groups / ceil(all_groups / number(choices, "groups")))
        return {"group": group, "groups": groups, "panels": ceil(panels / ceil(panels / number(choices, "panels")))}

    def candidates(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
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


__all__ = ["ConvTilesCpu", "estimated_cycles"]
