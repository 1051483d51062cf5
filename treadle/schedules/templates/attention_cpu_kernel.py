"""The kernel of attention on a CPU: a block of queries by all of their keys, whose scores stay in the cache."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, inf

from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.task import repeat
from treadle.schedules.index_value import Index, Predicate, all_of
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.template import Choices, number
from treadle.schedules.templates.attention_blocks import (
    blocks_of,
    mask_element,
    overhangs,
    ragged_end,
    share_of_keys,
    work_tile,
)
from treadle.target import Target


@dataclass(frozen=True)
class _ResultTile:
    """A register tile of the result: from the block's query `first` on, and `lanes` columns from `column` on, of which
    `used` exist."""

    first: Index
    column: Index
    lanes: int
    used: int

    def inside(self, e: Index) -> list[Predicate]:
        """When column e of the tile exists; nothing where all do."""
        return [e < self.used] if self.used < self.lanes else []


class AttentionCpuKernel:
    """Writes the kernel of one attention. Lanes of scores are neighbouring queries, lanes of the result elements of
    a value: then keys and values are read in place, and no fold crosses lanes."""

    def __init__(self, anchor: AttentionOp, choices: Choices, target: Target):
        self.anchor = anchor
        self.m, self.n = anchor.scores_shape[-2:]
        assert isinstance(anchor.q.type, TensorType)
        self.size, self.width = anchor.q.type.get_shape()[-1], anchor.shape[-1]
        self.lanes = target.lanes
        self.queries = number(choices, "vectors") * target.lanes
        self.keys, self.rows = number(choices, "keys"), min(number(choices, "rows"), self.queries)
        self.columns = number(choices, "columns") * target.lanes
        self.is_causal = bool(anchor.causal.value.data)
        self.b = KernelBuilder([t.type for t in anchor.operands if isinstance(t.type, TensorType)], anchor.type)

    def build(self, name: str) -> KernelOp:
        b = self.b
        anchor = self.anchor
        work = work_tile(b, anchor, self.queries, self.keys)
        self.first_row, self.head, self.shared_head = work.first_row, work.head, work.shared_head
        # Rows that see no key divide by the sum of a hidden one's weights, which is NaN, as the definition has it.
        self.tiles = work.tiles.max(1) if self.is_causal and self.m > self.n else work.tiles
        self.length = work.length
        self.visible = (self.tiles * self.keys).min(work.length)
        self.last_key = self.n - 1 if isinstance(work.length, int) else work.length.max(1) - 1
        query = self._packed_queries()
        scores = b.alloc("scores", [ceil(self.n / self.keys) * self.keys, self.queries], f32)
        largest = self._scores(query, scores)
        shares = self._weigh(scores, largest)
        self._multiply(scores, shares)
        kind = "causal attention" if self.is_causal else "attention"
        comment = f"{kind} of {self.m} queries of {self.size} elements, {self.n} keys and values of {self.width}"
        blocks = blocks_of(anchor, self.queries)
        return b.kernel(name, anchor.operands, anchor.type, blocks, 1, comment)

    @contextmanager
    def _lanes(self) -> Generator[Index]:
        """A vector loop over the block's queries."""
        with self.b.tasks(["i"], repeat(self.queries), unroll=True, vector=True) as (i,):
            yield i

    def _filled(self, name: str, value: float) -> SSAValue:
        """A number for each query of the block."""
        b = self.b
        buffer = b.alloc(name, [self.queries], f32)
        with self._lanes() as i:
            b.store(b.constant(value, f32), buffer, [i])
        return buffer

    def _exists(self, row: Index) -> list[Predicate]:
        return [row < self.m] if self.m % self.queries else []

    def _packed_queries(self) -> SSAValue:
        """The block's queries, transposed; zeros beyond the last one."""
        b = self.b
        query = b.alloc("query", [self.size, self.queries], f32)
        with b.loop("d", self.size) as d, self._lanes() as i:
            row = self.first_row + i
            inside = all_of(self._exists(row))
            zero = None if inside is None else b.constant(0, f32)
            b.store(b.load(b.inputs[0], [*self.head, row, d], inside, zero), query, [d, i])
        return query

    def _scores(self, query: SSAValue, scores: SSAValue) -> SSAValue:
        """Writes the scaled and masked scores of the keys that the block sees, and gives the largest of each query.
        A tile that overhangs repeats the last key, which changes no maximum."""
        b = self.b
        largest = self._filled("largest", -inf)
        with b.loop("tile", self.tiles) as tile:
            first = tile * self.keys
            if self.anchor.mask is not None:
                self._add_mask(first, scores)
            acc = b.alloc("acc", [self.keys, self.queries], f32)
            each = repeat(self.keys, self.queries)
            with b.tasks(["n", "i"], each, unroll=True, vector=True) as (n, i):
                b.store(b.constant(0, f32), acc, [n, i])
            with b.loop("d", self.size) as d, b.tasks(["n", "i"], each, unroll=True, vector=True) as (n, i):
                key = b.load(b.inputs[1], [*self.shared_head, self._key(first + n), d])
                product = b.mul(key, b.load(query, [d, i]))
                b.store(b.add(b.load(acc, [n, i]), product), acc, [n, i])
            with b.loop("n", self.keys, unroll=True) as n, self._lanes() as i:
                score = self._score(b.load(acc, [n, i]), first + n, i, scores)
                b.store(score, scores, [first + n, i])
                b.store(b.binary("max", b.load(largest, [i]), score), largest, [i])
        return largest

    def _key(self, key: Index) -> Index:
        """The key, or the last one beyond it."""
        return key.min(self.last_key) if overhangs(self.length, self.keys) else key

    def _add_mask(self, first: Index, scores: SSAValue) -> None:
        """Puts the mask where the scores of a tile will be: in a loop of its own, since not every mask is vectors."""
        b, anchor = self.b, self.anchor
        assert anchor.mask is not None and isinstance(anchor.mask.type, TensorType)
        with b.loop("n", self.keys) as n, self._lanes() as i:
            row = self.first_row + i
            ends = (ragged_end(self.m, self.queries), None)
            value = mask_element(b, anchor, self.head, row, self._key(first + n), ends)
            b.store(value, scores, [first + n, i])

    def _score(self, product: SSAValue, key: Index, i: Index, scores: SSAValue) -> SSAValue:
        """The scaled and masked product of a query and a key, -inf where it does not see the key."""
        b, scale = self.b, self.anchor.scale.value.data
        score = product if scale == 1 else b.mul(product, b.constant(scale, f32))
        if self.anchor.mask is not None:
            score = b.add(score, b.load(scores, [key, i]))
        if self.is_causal:
            seen = self._key(key) <= self.first_row + i + (self.n - self.m)
            score = b.select(seen, score, b.constant(-inf, f32))
        return score

    def _weigh(self, scores: SSAValue, largest: SSAValue) -> SSAValue:
        """Scores become weights, of which the largest is 1; gives by what the weighted values are to be multiplied: 0
        where there are none."""
        b = self.b
        total = self._filled("total", 0)
        # One vector of queries after the other: the constants of exp leave few registers for sums.
        with (
            b.loop("v", self.queries // self.lanes, unroll=True) as v,
            b.loop("n", self.visible) as n,
            b.tasks(["i"], repeat(self.lanes), unroll=True, vector=True) as (lane,),
        ):
            i = v * self.lanes + lane
            weight = b.math("exp", b.binary("sub", b.load(scores, [n, i]), b.load(largest, [i])))
            b.store(weight, scores, [n, i])
            b.store(b.add(b.load(total, [i]), weight), total, [i])
        shares = b.alloc("shares", [self.queries], f32)
        with self._lanes() as i:
            share = b.binary("div", b.constant(1, f32), b.load(total, [i]))
            b.store(share_of_keys(b, self.length, share), shares, [i])
        return shares

    def _multiply(self, weights: SSAValue, shares: SSAValue) -> None:
        """The weighted values: panels of columns by all rows of the block."""
        b = self.b
        whole, rest = divmod(self.width, self.columns)
        if whole:
            with b.loop("panel", whole) as panel:
                self._panel(weights, shares, panel * self.columns, self.columns, self.columns)
        if rest:
            lanes = ceil(rest / self.lanes) * self.lanes
            self._panel(weights, shares, b.index(whole * self.columns), lanes, rest)

    def _panel(self, weights: SSAValue, shares: SSAValue, column: Index, lanes: int, used: int) -> None:
        b = self.b
        last = self.queries - self.rows
        # Not unrolled: else GCC keeps vectors of each query's share in registers that the sums are to have.
        with b.loop("part", ceil(self.queries / self.rows), at_once=1) as part:
            first = part * self.rows
            # The last tile begins earlier where it would overhang: it writes some rows again, and has no other code.
            first = first if self.queries % self.rows == 0 else first.min(last)
            self._tile(weights, shares, _ResultTile(first, column, lanes, used))

    def _tile(self, weights: SSAValue, shares: SSAValue, tile: _ResultTile) -> None:
        b, each = self.b, repeat(self.rows, tile.lanes)
        with b.when(all_of(self._exists(self.first_row + tile.first))):
            acc = b.alloc("sums", [self.rows, tile.lanes], f32)
            with b.tasks(["r", "e"], each, unroll=True, vector=True) as (r, e):
                b.store(b.constant(0, f32), acc, [r, e])
            with b.loop("n", self.visible) as n, b.tasks(["r", "e"], each, unroll=True, vector=True) as (r, e):
                inside = all_of(tile.inside(e))
                zero = None if inside is None else b.constant(0, f32)
                value = b.load(b.inputs[2], [*self.shared_head, n, tile.column + e], inside, zero)
                product = b.mul(b.load(weights, [n, tile.first + r]), value)
                b.store(b.add(b.load(acc, [r, e]), product), acc, [r, e])
            self._store(acc, shares, tile)

    def _store(self, acc: SSAValue, shares: SSAValue, tile: _ResultTile) -> None:
        b = self.b
        with b.tasks(["r", "e"], repeat(self.rows, tile.lanes), unroll=True, vector=True) as (r, e):
            share, row = b.load(shares, [tile.first + r]), self.first_row + tile.first + r
            value = b.mul(b.load(acc, [r, e]), share)
            if self.anchor.guard.value.data:
                value = b.select(b.binary("ne", share, share), b.constant(0, f32), value)
            where = all_of([*self._exists(row), *tile.inside(e)])
            b.store(value, b.output, [*self.head, row, tile.column + e], where)


__all__ = ["AttentionCpuKernel"]
