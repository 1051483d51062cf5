"""Winograd's convolution on a CPU: transforms and products of some tiles of an image, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import ceil, prod
from typing import ClassVar, NamedTuple

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, WinogradConvOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.access_analysis import panel_width
from treadle.schedules.register_tile import MOST_ROWS, MOST_VECTORS, check_tile, default_vectors, most_rows
from treadle.schedules.template import Anchor, Choices, Knob, Template, number
from treadle.schedules.templates.winograd_cpu_kernel import WinogradKernel
from treadle.target import Target

_LONGEST_CHUNK = 256
_MOST_PANELS = 64
_INPUT, _OUTPUT = 5, 4
"""Cycles that a vector of a tile takes to be transformed, of the image and of products: a load and a store, and two
additions. Estimates."""
_FEED, _ITERATION = 0.25, 1.0
"""Cycles that a vector or element takes to be loaded for a term of a register tile, and an iteration of its loop takes
by itself. Estimates."""
_LINE = 10
"""Cycles that a line of the filters takes beside its products, where it comes from memory. An estimate."""
_LATENCY = 8
"""Cycles between additions to one sum. An estimate."""
_START = 2000
"""Cycles to begin a block. An estimate."""
_OVERFLOW = 1.3
"""How many times as long products take where a block's tiles leave the second cache. An estimate."""


class WinogradCpu(Template):
    """A block transforms `chunk` tiles of the image, all channels, to a buffer; multiplies them by `panels` panels of
    filters, in register tiles of `rows` tiles by a panel's vectors; and transforms each panel's products to pixels.

    All of it stays in the core's second cache. Tiles that touch a border are read by code of their own, so that the
    others test nothing. Results are stored at one place, to which epilogues are fused. Blocks of one group of panels
    follow one another.
    """

    name: ClassVar[str] = "winograd_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("rows", tuple(range(1, MOST_ROWS + 1)), "tiles of the image in a register tile"),
        Knob("chunk", tuple(range(1, _LONGEST_CHUNK + 1)), "tiles of the image that a block computes"),
        Knob("panels", tuple(range(1, _MOST_PANELS + 1)), "panels of filters that a block computes"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, WinogradConvOp)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        extents = Extents.of(anchor, target)
        return dict(min(self.candidates(anchor, target), key=lambda c: estimated_cycles(anchor, c, target, extents)))

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        rows, chunk = number(choices, "rows"), number(choices, "chunk")
        check_tile(self.name, rows, _vectors(anchor, target), chunk, target)

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """As many blocks are even, and have no more tiles and panels than there are."""
        return Extents.of(anchor, target).canonical(choices)

    def candidates(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """As in general, without looking at each chunk up to the longest: a few rows, and those chunks and panels that
        give different numbers of blocks."""
        extents = Extents.of(anchor, target)
        tiles, panels, vectors = extents
        most = min(tiles, most_rows(target, vectors))
        groups = sorted({ceil(panels / count) for count in range(1, panels + 1)} & set(range(1, _MOST_PANELS + 1)))
        for rows in range(1, most + 1):
            counts = {ceil(tiles / chunk) for chunk in range(rows, _LONGEST_CHUNK + 1, rows)}
            for chunk in sorted({ceil(ceil(tiles / count) / rows) * rows for count in counts}):
                for each in groups:
                    choices: Choices = {"rows": rows, "chunk": chunk, "panels": each}
                    if chunk <= _LONGEST_CHUNK and extents.canonical(choices) == choices:
                        yield choices

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """Tiles of the image overlap, and are transformed for each group of panels; filters are read in each chunk, for
        each tile of rows."""
        assert isinstance(anchor, WinogradConvOp)
        choices = self.default(anchor, target)
        tiles, panels, _ = Extents.of(anchor, target)
        if operand is anchor.filters:
            return Fraction(ceil(tiles / number(choices, "rows")))
        n, blocks, *_, lanes = anchor.image
        read = n * blocks * lanes * prod(anchor.tiles) * anchor.filtering.tile**2
        return Fraction(read * ceil(panels / number(choices, "panels")), prod(anchor.image))

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, WinogradConvOp)
        return WinogradKernel(anchor, choices, _vectors(anchor, target), target.vector_registers).build(name)


class Extents(NamedTuple):
    """What choices of an anchor on a target divide into blocks. Finding it reads definitions: once for all choices."""

    tiles: int
    """Of all images."""
    panels: int
    """Of the filters."""
    vectors: int
    """Of a panel."""

    @classmethod
    def of(cls, anchor: Anchor, target: Target) -> Extents:
        """Those of a convolution."""
        assert isinstance(anchor, WinogradConvOp)
        vectors = _vectors(anchor, target)
        return cls(anchor.image[0] * prod(anchor.tiles), ceil(anchor.shape[1] / vectors), vectors)

    def canonical(self, choices: Choices) -> Choices:
        """As `Template.canonical`."""
        rows = min(number(choices, "rows"), self.tiles)
        chunk = ceil(ceil(self.tiles / ceil(self.tiles / number(choices, "chunk"))) / rows) * rows
        groups = ceil(self.panels / number(choices, "panels"))
        return {
            "rows": rows,
            "chunk": min(chunk, _LONGEST_CHUNK // rows * rows),
            "panels": ceil(self.panels / groups),
        }


def estimated_cycles(anchor: Anchor, choices: Choices, target: Target, extents: Extents) -> float:
    """Cycles until the last core has finished its blocks; one multiplies and adds a vector."""
    assert isinstance(anchor, WinogradConvOp)
    tiles, panels, vectors = extents
    rows, chunk, each = (number(choices, knob) for knob in ("rows", "chunk", "panels"))
    products, channels = anchor.filtering.tile**2, anchor.matrix[0]
    iteration = max(_LATENCY, rows * vectors) + _FEED * (rows + vectors) + _ITERATION
    cycles = each * products * channels * (chunk / rows * iteration + vectors * _LINE)
    held = 4 * products * chunk * (anchor.image[1] + each * vectors) * target.lanes
    if held > target.l2_bytes // 2:
        cycles *= _OVERFLOW
    cycles += products * chunk * (_INPUT * anchor.image[1] + _OUTPUT * each * vectors) + _START
    return cycles * ceil(ceil(tiles / chunk) * ceil(panels / each) / target.cores)


def _vectors(anchor: Anchor, target: Target) -> int:
    """The vectors of the panels that the filters are laid out in, or else of the target's default."""
    assert isinstance(anchor, WinogradConvOp)
    producer, lanes = anchor.filters.owner, anchor.image[-1]
    width = panel_width(producer) if isinstance(producer, ComputeOp) else None
    vectors, rest = (0, 0) if width is None else divmod(width, lanes)
    if 1 <= vectors <= MOST_VECTORS and not rest:
        return vectors
    channels, columns = anchor.matrix
    return min(default_vectors(target, columns, channels), anchor.shape[1])


__all__ = ["Extents", "WinogradCpu", "estimated_cycles"]
