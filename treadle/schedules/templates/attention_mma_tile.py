"""Attention on tensor cores: the tiles that a choice of knobs implies for heads of given sizes, and the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from math import e as euler
from math import inf, log2

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.elementwise import convert
from treadle.dialects.loop import Space
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index
from treadle.schedules.template import Choices, number
from treadle.schedules.tiles import COLUMNS, PAIR, PRODUCT_M, Fragment, TileBuilder, TileLayout

_ELEMENT_BYTES = 2


@dataclass(frozen=True)
class AttentionMmaTile:
    """A block's tiles: `rows` queries, of which each warp takes a part of its own, and `stages` times `columns` keys
    with their values. `parts` warps share rows, each with a part of a tile's keys.

    size: of a query and a key (D); width: of a value (E)
    """

    rows: int
    columns: int
    warps: int
    parts: int
    stages: int
    size: int
    width: int

    @staticmethod
    def of(choices: Choices, size: int, width: int) -> AttentionMmaTile:
        """The tiles that a choice of knobs means."""
        names = ("rows", "columns", "warps", "parts", "stages")
        rows, columns, warps, parts, stages = (number(choices, name) for name in names)
        return AttentionMmaTile(rows, columns, warps, parts, stages, size, width)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps * self.parts

    @property
    def own_columns(self) -> int:
        """Keys of a tile that a warp takes."""
        return self.columns // self.parts

    @property
    def warp_rows(self) -> int:
        """Rows of a warp."""
        return self.rows // self.warps

    @property
    def slabs(self) -> int:
        """Products of a warp that lie below one another."""
        return self.warp_rows // PRODUCT_M

    @property
    def padded_size(self) -> int:
        """Elements of a query and a key, with zeros up to whole products."""
        return -(-self.size // COLUMNS) * COLUMNS

    @property
    def padded_width(self) -> int:
        """The same of a value."""
        return -(-self.width // COLUMNS) * COLUMNS

    @property
    def queries(self) -> TileLayout:
        """The block's queries."""
        return TileLayout(self.rows, self.padded_size, _ELEMENT_BYTES)

    @property
    def keys(self) -> TileLayout:
        """The keys of a stage."""
        return TileLayout(self.columns, self.padded_size, _ELEMENT_BYTES)

    @property
    def values(self) -> TileLayout:
        """The values of a stage."""
        return TileLayout(self.columns, self.padded_width, _ELEMENT_BYTES, along_k=False)

    @property
    def result(self) -> TileLayout:
        """The block's rows of the result."""
        return TileLayout(self.rows, self.padded_width, _ELEMENT_BYTES)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block. The result takes the place of the queries; parts of it and of its sums are
        added up beside it."""
        outer = max(self.queries.bytes, self.result.bytes)
        parts = (self.parts - 1) * self.padded_width + 8 * self.parts if self.parts > 1 else 0
        return outer + self.stages * (self.keys.bytes + self.values.bytes) + 4 * self.rows * parts

    @property
    def registers(self) -> int:
        """Registers of a thread that hold matrices: its queries, its part of the result, and scores; and where the
        swizzled fragments of each 16 columns of keys and of values begin."""
        matrices = self.slabs * (self.padded_size // 4 + self.padded_width // 2 + self.own_columns // 2)
        return matrices + (self.padded_size + self.padded_width) // COLUMNS


class OnlineSoftmax:
    """The softmax of a warp's rows, whose scores come a tile at a time: of each row the largest score so far, and the
    sum of the weights relative to it, which is scaled down when a larger score appears, as the result so far is to be.

    rows: of a lane, as [r, h] of the fragments of scores
    Source: Milakov and Gimelshein (arXiv 1805.02867), algorithm 3.
    """

    def __init__(self, t: TileBuilder, anchor: AttentionOp, rows: tuple[int, int]):
        self._t, self._b, self._rows = t, t.b, rows
        self._scale, self._unit, self._is_folded = _factors(anchor)
        self.largest, self.total = self._registers("largest", -inf), self._registers("total", 0)

    def _registers(self, name: str, initial: float) -> SSAValue:
        """A register for each row of the lane."""
        b = self._b
        registers = b.alloc(name, self._rows, f32)
        with b.tasks(["r", "h"], repeat(*self._rows), unroll=True) as where:
            b.store(b.constant(initial, f32), registers, where)
        return registers

    def scores(self, products: Fragment, added: SSAValue | None) -> SSAValue:
        """Scaled products, with a mask's elements added, as `[r, p, q, h, c]`."""
        b, shape = self._b, [*products.shape, self._rows[1], 2]
        scores = b.alloc("scores", shape, f32)
        with b.tasks(["r", "p", "q", "h", "c"], repeat(*shape), unroll=True) as where:
            score = products.load(*where)
            score = score if self._scale == 1 else b.mul(score, b.constant(self._scale, f32))
            if added is not None:
                score = b.add(score, convert(b, b.load(added, where), f32))
            b.store(score, scores, where)
        return scores

    def weigh(self, of: Fragment, scores: SSAValue) -> SSAValue:
        """Scores become weights, relative to the largest so far; sums are scaled down to it. The factors of rows, by
        which results so far are to be multiplied."""
        b, (_, pairs, _) = self._b, of.shape
        shrink = b.alloc("shrink", self._rows, f32)
        with b.tasks(["r", "h"], repeat(*self._rows), unroll=True) as (r, h):
            old = b.load(self.largest, [r, h])
            new = self._t.fold_row("max", self._t.elements(scores), of, [r, h], old)
            b.store(new, self.largest, [r, h])
            base = self.base(new)
            factor = self.weight(old, base)
            b.store(factor, shrink, [r, h])
            b.store(b.mul(b.load(self.total, [r, h]), factor), self.total, [r, h])
            with b.tasks(["p", "q", "c"], repeat(pairs, PAIR, 2), unroll=True) as (p, q, c):
                weight = self.weight(b.load(scores, [r, p, q, h, c]), base)
                b.store(b.add(b.load(self.total, [r, h]), weight), self.total, [r, h])
                b.store(weight, scores, [r, p, q, h, c])
        return shrink

    def weight(self, score: Scalar, base: Scalar) -> Scalar:
        """The weight of a score relative to what `base` gives for another one. Weights are rounded to 16 bits, or
        multiplied with sums that are exact to f32 at best, which an approximation within 2^-22 is enough for."""
        b, unit = self._b, self._b.constant(self._unit, f32)
        power = b.fma(score, unit, base) if self._is_folded else b.mul(b.binary("sub", score, base), unit)
        return b.approximate_exp2(power)

    def base(self, largest: Scalar) -> Scalar:
        """What scores are relative to, or what is added to their multiples. Before the first visible key 0, since
        -inf - -inf would be NaN, and stay it."""
        b = self._b
        finite = b.select(b.binary("eq", largest, b.constant(-inf, f32)), b.constant(0, f32), largest)
        return b.mul(finite, b.constant(-self._unit, f32)) if self._is_folded else finite

    def merge(self, acc: Fragment, part: Index, parts: int, threads: int) -> None:
        """Gives the first of the warps that share rows the sums and results of all of them, `threads` of each part.

        Lanes of the same number have the same elements in every warp, so that each writes and reads words of its own.
        """
        b, lane, rows = self._b, self._b.thread % threads, self._rows
        largest, total = (b.alloc(name, [parts, *rows, threads], f32, Space.SHARED) for name in ("peaks", "totals"))
        with b.tasks(["r", "h"], repeat(*rows), unroll=True) as (r, h):
            b.store(b.load(self.largest, [r, h]), largest, [part, r, h, lane])
            b.store(b.load(self.total, [r, h]), total, [part, r, h, lane])
        b.barrier()
        factors = b.alloc("factors", rows, f32)
        with b.tasks(["r", "h"], repeat(*rows), unroll=True) as (r, h):
            peak = b.alloc("peak", [1], f32)
            b.store(b.load(self.largest, [r, h]), peak, [0])
            with b.loop("s", parts, unroll=True) as s:
                b.store(b.binary("max", b.load(peak, [0]), b.load(largest, [s, r, h, lane])), peak, [0])
            base = self.base(b.load(peak, [0]))
            b.store(self.weight(b.load(self.largest, [r, h]), base), factors, [r, h])
            b.store(b.constant(0, f32), self.total, [r, h])
            with b.loop("s", parts, unroll=True) as s:
                share = b.mul(b.load(total, [s, r, h, lane]), self.weight(b.load(largest, [s, r, h, lane]), base))
                b.store(b.add(b.load(self.total, [r, h]), share), self.total, [r, h])
        acc.scale_rows(factors)
        self._t.add_up(acc, part, parts, threads)


def _factors(anchor: AttentionOp) -> tuple[float, float, bool]:
    """The factor of products, and that of what is exponentiated base 2: together scale times log2 e. The third says
    whether the second does, and is multiplied in the operation that makes products relative to the largest: not where
    it overflows, since masks reach the end of f32's range, and products, for a factor above 1; nor where the largest
    product has not the largest score."""
    scale = anchor.scale.value.data
    whole = scale * log2(euler)
    return (1, whole, True) if anchor.mask is None and 0 < whole <= 1 else (scale, log2(euler), False)
