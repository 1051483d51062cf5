"""Attention on a CPU: scores and weights never leave the cache of a core."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.definition import widened
from treadle.dialects.graph.elementwise import convert
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, Predicate, all_of, kernel_builder
from treadle.schedules.register_tile import MOST_ROWS, MOST_VECTORS, most_rows
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limit, check_limits, number
from treadle.schedules.templates.attention_tile import (
    WideRows,
    blocks_of,
    is_narrow,
    is_static_of_floats,
    is_worth_widening,
    mask_element,
    mask_varies,
    may_see_none,
    share_of_keys,
    work_tile,
)
from treadle.schedules.tiles import end_of
from treadle.target import Target

_VECTORS = 2
"""Vectors of a default register tile."""
_WIDEST = 4
"""Vectors of the widest tiles that are worth trying."""


class AttentionCpu(Template):
    """A block computes `vectors` vectors of queries of one head, in three steps: their scores with all keys, in
    register tiles of `keys` keys by all queries of the block; the exponentials, and their sums; and the product with
    the values, in register tiles of `rows` queries by `columns` vectors of a value.

    A vector of scores is one of neighbouring queries, which the block transposes first. Keys and values are then read
    in place, and the largest score and the sum of a query need no fold across lanes. The scores of a block stay in
    the second cache, so that the softmax is exact: its largest score is known before the first exponential. Keys
    that causality hides from all queries of a block are skipped, as are those beyond a length; a value that causality
    hides and that is not finite makes rows NaN only where it is not skipped.

    Source: the two passes are those of Rabe and Staats (arXiv 2112.05682), section 2, with blocks of queries, of which
    all keys are one chunk.
    """

    name: ClassVar[str] = "attention_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("vectors", tuple(range(1, MOST_VECTORS + 1)), "vectors of queries that a block computes"),
        Knob("keys", tuple(range(1, MOST_ROWS + 1)), "keys of a register tile of scores"),
        Knob("rows", tuple(range(1, MOST_ROWS + 1)), "queries of a register tile of the result"),
        Knob("columns", tuple(range(1, MOST_VECTORS + 1)), "vectors of its row"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return is_static_of_floats(anchor)

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        return isinstance(anchor, AttentionOp) and _default(anchor, target) is not None

    def keeps_whole(self, anchor: Anchor) -> bool:
        return isinstance(anchor, AttentionOp) and is_worth_widening(anchor)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, AttentionOp)
        found = _default(anchor, target)
        # A decision by hand may ask for the kernel where it is no default.
        return _choices(anchor, target, 1) if found is None else found

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """A block transposes its queries once. It reads the keys one by one, which takes as long as a vector, and so is
        a mask that is the same for all queries; the values for every tile of rows."""
        assert isinstance(anchor, AttentionOp)
        choices = self.default(anchor, target)
        queries = number(choices, "vectors") * target.lanes
        *_, m, n, _, _ = _extents(anchor)
        blocks = ceil(m / queries)
        reads = [
            (anchor.q, Fraction(1)),
            (anchor.k, Fraction(anchor.group_size * blocks * target.lanes)),
            (anchor.v, Fraction(anchor.group_size * blocks * ceil(queries / number(choices, "rows")))),
        ]
        if anchor.mask is not None:
            assert isinstance(anchor.mask.type, TensorType)
            by_row, _ = mask_varies(anchor.mask.type)
            elements = prod(anchor.shape[:-2]) * n * (m if by_row else blocks * target.lanes)
            reads.append((anchor.mask, Fraction(elements, prod(anchor.mask.type.get_shape()))))
        ends = [each for each in (anchor.length, anchor.offset) if each is not None]
        reads += [(each, Fraction(prod(anchor.shape[:-2]) * blocks)) for each in ends]
        return sum((times for x, times in reads if x is operand), start=Fraction(0))

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, AttentionOp)
        for what, lines, width in (("keys", "keys", "vectors"), ("rows", "rows", "columns")):
            used, vectors = number(choices, lines), number(choices, width)
            most = most_rows(target, vectors)
            check_limit(
                f"{what} of a tile",
                used,
                most,
                message=f"attention_cpu: a tile of {used} {what} by {vectors} vectors has {used - most} {what} too "
                f"many for {target.vector_registers} registers",
                accepted=f"at most {most} {what}",
            )
        check_limits("attention_cpu", [_cached(anchor, choices, target)], target)

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """A block has no more vectors of queries than there are, and a tile no more lines and vectors than a block."""
        *_, m, n, _, width = _extents(anchor)
        vectors = min(number(choices, "vectors"), ceil(m / target.lanes))
        return {
            "vectors": vectors,
            "keys": min(number(choices, "keys"), n),
            "rows": min(number(choices, "rows"), vectors * target.lanes),
            "columns": min(number(choices, "columns"), ceil(width / target.lanes)),
        }

    def listed(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """Tiles of up to four vectors with the most lines that stay in registers, and with fewer, which are even."""
        assert isinstance(anchor, AttentionOp)
        *_, m, n, _, width = _extents(anchor)
        widths = range(1, _WIDEST + 1)
        most = {vectors: most_rows(target, vectors) for vectors in widths}
        tried = [
            {"vectors": vectors, "keys": keys, "rows": rows, "columns": columns}
            for vectors in widths
            for keys in {most[vectors], _even(n, most[vectors])}
            for columns in widths[: ceil(width / target.lanes)]
            for rows in {most[columns], _even(min(vectors * target.lanes, m), most[columns])}
        ]
        return self.canonical_forms(anchor, target, tried)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        return AttentionCpuKernel(anchor, choices, target).build(name)


def _extents(anchor: Anchor) -> tuple[int, ...]:
    """Every extent of the operator: batch, heads, queries and keys, the sizes of queries and values."""
    assert isinstance(anchor, AttentionOp) and isinstance(anchor.q.type, TensorType)
    return (*anchor.scores_shape, anchor.q.type.get_shape()[-1], anchor.shape[-1])


def _cached(anchor: AttentionOp, choices: Choices, target: Target) -> tuple[str, int, int]:
    """The bytes of a block's scores and queries, and how many there may be of them."""
    *_, n, size, _ = _extents(anchor)
    lines = ceil(n / number(choices, "keys")) * number(choices, "keys") + size
    used = 4 * lines * number(choices, "vectors") * target.lanes
    return "bytes of scores and queries", used, target.l2_bytes // 2


def _choices(anchor: AttentionOp, target: Target, vectors: int) -> dict[str, Choice]:
    """A block of so many vectors of queries, with the largest tiles that stay in registers, evened out."""
    *_, m, n, _, width = _extents(anchor)
    columns = min(_VECTORS, ceil(width / target.lanes))
    keys = _even(n, most_rows(target, vectors))
    rows = _even(min(vectors * target.lanes, m), most_rows(target, columns))
    return {"vectors": vectors, "keys": keys, "rows": rows, "columns": columns}


def _even(extent: int, most: int) -> int:
    """The least length of tiles of which as few cover an extent as of the longest ones."""
    return ceil(extent / ceil(extent / most))


def _default(anchor: AttentionOp, target: Target) -> dict[str, Choice] | None:
    """Two vectors of queries, or one where there are no more or where the scores of two exceed half of the cache. None
    where those of one do, and for fewer queries than a vector has lanes, of which most would be idle: products and a
    softmax then vectorise along the keys."""
    *_, m, _, _, _ = _extents(anchor)
    if m < target.lanes:
        return None
    for vectors in range(min(_VECTORS, ceil(m / target.lanes)), 0, -1):
        choices = _choices(anchor, target, vectors)
        _, used, allowed = _cached(anchor, choices, target)
        if used <= allowed:
            return choices
    return None


# The kernel of attention on a CPU: a block of queries by all of their keys, whose scores stay in the cache.


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
        self.element = anchor.type.get_element_type()
        self.lanes = target.lanes
        self.queries = number(choices, "vectors") * target.lanes
        self.keys, self.rows = number(choices, "keys"), min(number(choices, "rows"), self.queries)
        self.columns = number(choices, "columns") * target.lanes
        self.is_causal = bool(anchor.causal.value.data)
        self.b = kernel_builder(anchor.operands, anchor.type)

    def build(self, name: str) -> KernelOp:
        b = self.b
        anchor = self.anchor
        work = work_tile(b, anchor, self.queries, self.keys)
        self.first_row, self.head, self.shared_head = work.first_row, work.head, work.shared_head
        # Rows that see no key divide by the sum of a hidden one's weights, which is NaN, as the definition has it.
        self.tiles = work.tiles.max(1) if self.is_causal and may_see_none(work.offset) else work.tiles
        self.length, self.offset = work.length, work.offset
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
            zero = None if inside is None else b.constant(0, self.element)
            b.store(widened(b, b.load(b.inputs[0], [*self.head, row, d], inside, zero)), query, [d, i])
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
            wide = self._widened_keys(first) if is_narrow(b.inputs[1]) else None
            acc = b.alloc("acc", [self.keys, self.queries], f32)
            each = repeat(self.keys, self.queries)
            with b.tasks(["n", "i"], each, unroll=True, vector=True) as (n, i):
                b.store(b.constant(0, f32), acc, [n, i])
            with b.loop("d", self.size) as d, b.tasks(["n", "i"], each, unroll=True, vector=True) as (n, i):
                key = wide.load(n, d) if wide else b.load(b.inputs[1], [*self.shared_head, self._key(first + n), d])
                product = b.mul(key, b.load(query, [d, i]))
                b.store(b.add(b.load(acc, [n, i]), product), acc, [n, i])
            with b.loop("n", self.keys, unroll=True) as n, self._lanes() as i:
                score = self._score(b.load(acc, [n, i]), first + n, i, scores)
                b.store(score, scores, [first + n, i])
                b.store(b.binary("max", b.load(largest, [i]), score), largest, [i])
        return largest

    def _widened_keys(self, first: Index) -> WideRows:
        return WideRows.of(self.b, self.b.inputs[1], self.shared_head, lambda n: self._key(first + n), self.keys)

    def _key(self, key: Index) -> Index:
        """The key, or the last one beyond it."""
        return key.min(self.last_key) if end_of(self.length, self.keys) is not None else key

    def _add_mask(self, first: Index, scores: SSAValue) -> None:
        """Puts the mask where the scores of a tile will be: in a loop of its own, since not every mask is vectors."""
        b, anchor = self.b, self.anchor
        assert anchor.mask is not None and isinstance(anchor.mask.type, TensorType)
        with b.loop("n", self.keys) as n, self._lanes() as i:
            row = self.first_row + i
            ends = (end_of(self.m, self.queries), None)
            value = mask_element(b, anchor, self.head, row, self._key(first + n), ends)
            b.store(widened(b, value), scores, [first + n, i])

    def _score(self, product: SSAValue, key: Index, i: Index, scores: SSAValue) -> SSAValue:
        """The scaled and masked product of a query and a key, -inf where it does not see the key."""
        b, scale = self.b, self.anchor.scale.value.data
        score = product if scale == 1 else b.mul(product, b.constant(scale, f32))
        if self.anchor.mask is not None:
            score = b.add(score, b.load(scores, [key, i]))
        if self.is_causal:
            seen = self._key(key) <= self.first_row + i + self.offset
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
                zero = None if inside is None else b.constant(0, self.element)
                value = widened(b, b.load(b.inputs[2], [*self.shared_head, n, tile.column + e], inside, zero))
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
            b.store(convert(b, value, self.element), b.output, [*self.head, row, tile.column + e], where)
