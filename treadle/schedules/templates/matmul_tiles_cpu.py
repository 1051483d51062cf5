"""Matrix product on a CPU core's matrix unit: packed rows by panels of a constant, in tiles of 32 x 32."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import PackedMatmulOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.limits import check_divides
from treadle.schedules.template import Anchor, Choices, Knob, Template, number
from treadle.schedules.templates.matmul_tiles_cpu_kernel import (
    HALF_TILE,
    TILE_ROWS,
    MatmulTilesBody,
    padded_depth,
)
from treadle.target import Target

_LONGEST_CHUNK = 1024
_MOST_PANELS = 2048
_PACK, _STORE = 0.15, 0.5
"""Cycles to pack a byte of a row, and to store a sum. Estimates."""
_LINE = 10
"""Cycles that a line of a panel takes beside its products. An estimate."""
_START = 2000
"""Cycles to begin a block. An estimate."""
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
        Knob("chunk", tuple(range(HALF_TILE, _LONGEST_CHUNK + 1, HALF_TILE)), "rows that a block packs"),
        Knob("panels", tuple(range(1, _MOST_PANELS + 1)), "panels of B that a block multiplies by"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, PackedMatmulOp)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        return dict(min(self.candidates(anchor, target), key=lambda c: estimated_cycles(anchor, c, target)))

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        chunk = number(choices, "chunk")
        if chunk > HALF_TILE:
            check_divides(
                "rows of a chunk's tiles",
                TILE_ROWS,
                chunk,
                f"matmul_tiles_cpu: tiles of {TILE_ROWS} rows overrun a chunk of {chunk} rows",
                accepted=f"{HALF_TILE}, or a multiple of {TILE_ROWS}",
            )

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """As many blocks are even, and have no more rows and panels than there are."""
        m, panels = _extents(anchor)
        groups = ceil(panels / number(choices, "panels"))
        return {"chunk": _even(m, ceil(m / number(choices, "chunk"))), "panels": ceil(panels / groups)}

    def candidates(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """As in general, without looking at each chunk up to the longest."""
        m, panels = _extents(anchor)
        chunks = sorted({_even(m, count) for count in range(ceil(m / _LONGEST_CHUNK), ceil(m / HALF_TILE) + 1)})
        groups = {ceil(panels / each) for each in range(1, min(panels, _MOST_PANELS) + 1)}
        for chunk in chunks:
            if chunk <= _LONGEST_CHUNK and _even(m, ceil(m / chunk)) == chunk:
                for count in sorted(groups):
                    yield {"chunk": chunk, "panels": ceil(panels / count)}

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """A is packed for each group of panels; the panels, which nothing computes, are read for each tile of rows."""
        assert isinstance(anchor, PackedMatmulOp)
        if operand is anchor.panels:
            return None
        return Fraction(ceil(_extents(anchor)[1] / number(self.default(anchor, target), "panels")))

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, PackedMatmulOp)
        return MatmulTilesBody(anchor, choices, target).build(name)


def estimated_cycles(anchor: Anchor, choices: Choices, target: Target) -> float:
    """Cycles until the last core has finished its blocks."""
    assert isinstance(anchor, PackedMatmulOp) and isinstance(anchor.a.type, TensorType)
    m, panels = _extents(anchor)
    chunk, each = number(choices, "chunk"), number(choices, "panels")
    depth = padded_depth(anchor) * byte_width(anchor.a.type.get_element_type())
    products = each * target.unit.cycles(min(chunk, m)) * depth / 64
    if chunk * depth > target.l2_bytes // 2:
        products *= _OVERFLOW
    lines = each * depth * 32 / 64 * _LINE
    cycles = products + lines + _PACK * chunk * depth + _STORE * chunk * each * 32 + _START
    blocks = ceil(m / chunk) * ceil(panels / each) * prod(anchor.shape[:-2])
    return cycles * ceil(blocks / target.cores)


def _extents(anchor: Anchor) -> tuple[int, int]:
    """Rows of A, and panels of B."""
    assert isinstance(anchor, PackedMatmulOp) and isinstance(anchor.panels.type, TensorType)
    return anchor.shape[-2], anchor.panels.type.get_shape()[0]


def _even(m: int, count: int) -> int:
    """The rows of even chunks, of which there are so many, or fewer: half a tile, or whole tiles."""
    rows = ceil(m / count)
    return HALF_TILE if rows <= HALF_TILE else ceil(rows / TILE_ROWS) * TILE_ROWS


__all__ = ["MatmulTilesCpu", "estimated_cycles"]
