"""Attention of few queries on a CPU, such as a language model's next token: keys and values are read once a group."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, prod
from typing import ClassVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType, f32
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, Predicate, all_of, kernel_builder
from treadle.schedules.register_tile import MOST_VECTORS, most_rows
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limits, number
from treadle.schedules.templates.attention_tile import (
    key_range,
    mask_element,
    mask_varies,
    may_see_none,
    share_of_keys,
)
from treadle.target import Target

_MOST_QUERIES = 8
_CHUNK = 128
"""Keys whose values all rows of a block are multiplied by before the next ones: they stay in the caches."""


class AttentionDecodeCpu(Template):
    """A block computes `queries` queries of all heads that share a head of keys and values, so that it reads each key
    and each value once: the scores of these rows with all keys, their exponentials and sums, and the weighted values.

    Lanes of scores are neighbouring keys, of which a tile of `vectors` vectors is transposed first; those of the result
    are elements of a value, `columns` vectors at a time. Register tiles have as many rows as fit, evened out. Scores
    stay in the second cache, so that the softmax is exact. Keys beyond a length, and those that causality hides from
    all rows of a block, are not read.

    Source: heads of a group together are Shazeer's multi-query attention (arXiv 1911.02150), section 3, and Ainslie et
    al., GQA (arXiv 2305.13245).
    """

    name: ClassVar[str] = "attention_decode_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("queries", tuple(range(1, _MOST_QUERIES + 1)), "queries of each head that a block computes"),
        Knob("vectors", tuple(range(1, MOST_VECTORS + 1)), "vectors of keys of a tile of scores"),
        Knob("columns", tuple(range(1, MOST_VECTORS + 1)), "vectors of a value of a tile of the result"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, AttentionOp) or DYNAMIC_INDEX in (*anchor.scores_shape, *anchor.shape):
            return False
        types = [o.type for o in anchor.operands if o not in (anchor.length, anchor.offset)]
        return all(isinstance(t, TensorType) and t.get_element_type() == f32 and prod(t.get_shape()) for t in types)

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        """Where scores stay in the cache. `attention_cpu`, which is tried before, takes at least as many queries as a
        vector has lanes, unless its scores of that many keys exceed the cache.

        `python -m benchmarks.decode_attention 12/12x1x64 12/12x8x64 14/2x1x64 14/2x8x64 14/2x12x64 14/2x16x64
        14/2x64x64 32/8x1x128 32/8x8x128 32/8x16x128 --used 1024 --threads 1` on a Xeon with AVX-512: 282, 484, 76, 311,
        417, 642, 2161, 430, 1602 and 2762 us with this kernel, 482, 555, 433, 542, 613, 711, 2026, 1803, 2370 and 2600
        with `attention_cpu`, whose vectors are of 16 queries."""
        return isinstance(anchor, AttentionOp) and _default(anchor, target) is not None

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, AttentionOp)
        # A decision by hand may ask for the kernel where it is no default.
        return _default(anchor, target) or _choices(anchor, target, 1)

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """Keys are transposed by vectors that lie apart: what is computed there is computed element by element, which
        takes as long as a vector. Each block reads the keys and the values that it needs once."""
        assert isinstance(anchor, AttentionOp)
        blocks = ceil(anchor.shape[-2] / number(self.default(anchor, target), "queries"))
        reads = [
            (anchor.q, Fraction(target.lanes)),
            (anchor.k, Fraction(blocks * target.lanes)),
            (anchor.v, Fraction(blocks)),
        ]
        if anchor.mask is not None:
            assert isinstance(anchor.mask.type, TensorType)
            _, by_key = mask_varies(anchor.mask.type)
            scores = prod(anchor.scores_shape) // (1 if by_key else target.lanes)
            reads.append((anchor.mask, Fraction(scores, prod(anchor.mask.type.get_shape()))))
        ends = [each for each in (anchor.length, anchor.offset) if each is not None]
        reads += [(each, Fraction(_shared_heads(anchor) * blocks)) for each in ends]
        return sum((times for x, times in reads if x is operand), start=Fraction(0))

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, AttentionOp)
        check_limits(self.name, [_cached(anchor, choices, target)], target)

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """A block has no more queries than there are, and a tile no more vectors than keys and values."""
        assert isinstance(anchor, AttentionOp)
        *_, m, n = anchor.scores_shape
        return {
            "queries": min(number(choices, "queries"), m),
            "vectors": min(number(choices, "vectors"), ceil(n / target.lanes)),
            "columns": min(number(choices, "columns"), ceil(anchor.shape[-1] / target.lanes)),
        }

    def listed(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """One query and all that a block may have, in tiles of up to four vectors."""
        tried = [
            {"queries": queries, "vectors": vectors, "columns": columns}
            for queries in (1, _MOST_QUERIES)
            for vectors in (1, 2, 3, 4)
            for columns in (1, 2, 3, 4)
        ]
        return self.canonical_forms(anchor, target, tried)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        return _DecodeKernel(anchor, choices, target).build(name)


_VECTORS = 2
_COLUMNS = 4
"""Vectors of a default tile of scores, and of the result."""


def _choices(anchor: AttentionOp, target: Target, queries: int) -> dict[str, Choice]:
    return {
        "queries": queries,
        "vectors": _VECTORS,
        "columns": min(_COLUMNS, ceil(anchor.shape[-1] / target.lanes)),
    }


def _default(anchor: AttentionOp, target: Target) -> dict[str, Choice] | None:
    """The most queries whose scores stay in the second cache, evened out; None where those of one do not."""
    m = anchor.shape[-2]
    for most in range(_MOST_QUERIES, 0, -1):
        choices = _choices(anchor, target, ceil(m / ceil(m / most)))
        _, used, allowed = _cached(anchor, choices, target)
        if used <= allowed:
            return choices
    return None


def _shared_heads(anchor: AttentionOp) -> int:
    """Heads of keys and values, of all batches."""
    return prod(anchor.shape[:-2]) // anchor.group_size


def _cached(anchor: AttentionOp, choices: Choices, target: Target) -> tuple[str, int, int]:
    """The bytes of a block's scores, queries and results, and how many there may be of them."""
    tile = _Rows.of(anchor, choices, target)
    assert isinstance(anchor.q.type, TensorType)
    keys = number(choices, "vectors") * target.lanes
    columns = ceil(anchor.scores_shape[-1] / keys) * keys + anchor.q.type.get_shape()[-1] + anchor.shape[-1]
    return "bytes of scores, queries and results", 4 * tile.number * columns, target.l2_bytes // 2


@dataclass(frozen=True)
class _Rows:
    """The rows of a block: query after query, of each all heads that share keys.

    number: of them; scored, weighted: of a register tile of scores, and of the result
    """

    number: int
    scored: int
    weighted: int

    @staticmethod
    def of(anchor: AttentionOp, choices: Choices, target: Target) -> _Rows:
        """The most rows that stay in registers, evened out."""
        rows = number(choices, "queries") * anchor.group_size
        most = (most_rows(target, number(choices, knob)) for knob in ("vectors", "columns"))
        scored, weighted = (ceil(rows / ceil(rows / each)) for each in most)
        return _Rows(rows, scored, weighted)


class _DecodeKernel:
    """Writes the kernel of one attention."""

    def __init__(self, anchor: AttentionOp, choices: Choices, target: Target):
        self.anchor = anchor
        self.m, self.n = anchor.scores_shape[-2:]
        assert isinstance(anchor.q.type, TensorType) and isinstance(anchor.k.type, TensorType)
        self.size, self.width = anchor.q.type.get_shape()[-1], anchor.shape[-1]
        self.lanes, self.queries = target.lanes, number(choices, "queries")
        self.rows = _Rows.of(anchor, choices, target)
        self.keys, self.columns = (number(choices, knob) * target.lanes for knob in ("vectors", "columns"))
        self.is_causal = bool(anchor.causal.value.data)
        self.shared = anchor.k.type.get_shape()[:-2]
        self.b = kernel_builder(anchor.operands, anchor.type)

    def build(self, name: str) -> KernelOp:
        b, anchor = self.b, self.anchor
        heads = prod(self.shared)
        # Heads change fastest, so that a call of fewer queries has the first blocks.
        self.first_query = (b.block // heads) * self.queries
        self.head = (b.block % heads).delinearize(self.shared) if self.shared else []
        self.length, self.offset = key_range(b, anchor)
        self.visible = self._visible()
        query = self._packed_queries()
        scores = b.alloc("scores", [self._padded(self.rows.scored), ceil(self.n / self.keys) * self.keys], f32)
        largest = self._scores(query, scores)
        shares = self._weigh(scores, largest)
        self._multiply(scores, shares)
        kind = "causal attention" if self.is_causal else "attention"
        comment = f"{kind} of {self.m} queries of {self.size} elements, {self.n} keys and values of {self.width}"
        blocks = heads * ceil(self.m / self.queries)
        return b.kernel(name, anchor.operands, anchor.type, blocks, 1, comment)

    def _visible(self) -> Index:
        """Keys that the block reads."""
        b = self.b
        if not self.is_causal:
            return b.index(self.length)
        seen = self.first_query + (self.offset + self.queries)
        # Rows that see no key divide by the sum of a hidden one's weights, which is NaN, as the definition has it.
        seen = seen.max(1) if may_see_none(self.offset) else seen
        return seen.min(self.length)

    def _steps(self, each: int) -> Index:
        """Steps of so many keys that cover those that the block reads. That they are not more than cover all keys is
        said for those who count work."""
        return ((self.visible + (each - 1)) // each).min(ceil(self.n / each))

    def _padded(self, tile: int) -> int:
        """The block's rows, in whole tiles."""
        return ceil(self.rows.number / tile) * tile

    def _place(self, row: Index) -> tuple[list[Index], Index]:
        """The head and the query of one of the block's rows; the last one of both for rows beyond it."""
        row = row.min(self.rows.number - 1)
        group = self.anchor.group_size
        query = self.first_query + row // group
        query = query.min(self.m - 1) if self.m % self.queries else query
        return [*self.head[:-1], self.head[-1] * group + row % group] if self.head else [], query

    @contextmanager
    def _lanes(self, vectors: int = 1) -> Generator[Index]:
        """A vector loop over the elements of some vectors."""
        with self.b.tasks(["i"], repeat(vectors * self.lanes), unroll=True, vector=True) as (i,):
            yield i

    def _packed_queries(self) -> SSAValue:
        """The block's queries, element after element."""
        b, rows = self.b, self._padded(self.rows.scored)
        query = b.alloc("query", [self.size, rows], f32)
        with b.loop("r", rows) as r, b.loop("d", self.size) as d:
            head, position = self._place(r)
            b.store(b.load(b.inputs[0], [*head, position, d]), query, [d, r])
        return query

    # Scores

    def _scores(self, query: SSAValue, scores: SSAValue) -> SSAValue:
        """Writes the scaled and masked scores of the keys that the block sees, and gives the largest of each row, in
        each lane that of its keys."""
        b = self.b
        largest = b.alloc("largest", [self._padded(self.rows.scored), self.lanes], f32)
        with b.loop("r", self._padded(self.rows.scored)) as r, self._lanes() as i:
            b.store(b.constant(-inf, f32), largest, [r, i])
        whole = (self.visible // self.keys).min(self.n // self.keys)
        with b.loop("tile", whole) as tile:
            self._tile(tile * self.keys, query, scores, largest, whole=True)
        with b.when(self.visible % self.keys > 0):
            self._tile(whole * self.keys, query, scores, largest, whole=False)
        return largest

    def _tile(self, first: Index, query: SSAValue, scores: SSAValue, largest: SSAValue, *, whole: bool) -> None:
        """The scores of all rows with a tile of keys, of which those from `visible` on do not count."""
        b, height = self.b, self.rows.scored
        key = b.alloc("key", [self.size, self.keys], f32)
        with b.loop("d", self.size) as d, self._lanes(self.keys // self.lanes) as i:
            exists = None if whole else first + i < self.visible
            zero = None if whole else b.constant(0, f32)
            b.store(b.load(b.inputs[1], [*self.head, first + i, d], exists, zero), key, [d, i])
        with b.loop("part", self._padded(height) // height, at_once=1) as part:
            row = part * height
            acc = b.alloc("acc", [height, self.keys], f32)
            each = repeat(height, self.keys)
            with b.tasks(["r", "i"], each, unroll=True, vector=True) as (r, i):
                b.store(b.constant(0, f32), acc, [r, i])
            with b.loop("d", self.size) as d, b.tasks(["r", "i"], each, unroll=True, vector=True) as (r, i):
                product = b.mul(b.load(query, [d, row + r]), b.load(key, [d, i]))
                b.store(b.add(b.load(acc, [r, i]), product), acc, [r, i])
            with (
                b.loop("r", height, unroll=True) as r,
                b.loop("v", self.keys // self.lanes, unroll=True) as v,
                self._lanes() as lane,
            ):
                i = v * self.lanes + lane
                score = self._score(b.load(acc, [r, i]), row + r, first + i, whole=whole)
                b.store(score, scores, [row + r, first + i])
                b.store(b.binary("max", b.load(largest, [row + r, lane]), score), largest, [row + r, lane])

    def _score(self, product: SSAValue, row: Index, key: Index, *, whole: bool) -> SSAValue:
        """The scaled and masked product of a query and a key, -inf where it does not see the key."""
        b, scale = self.b, self.anchor.scale.value.data
        score = product if scale == 1 else b.mul(product, b.constant(scale, f32))
        head, query = self._place(row)
        if self.anchor.mask is not None:
            ends = (None, None if whole else self.visible)
            score = b.add(score, mask_element(b, self.anchor, head, query, key, ends))
        hidden = b.constant(-inf, f32)
        if (self.is_causal and self.queries > 1) or (self.is_causal and not whole and may_see_none(self.offset)):
            score = b.select(key <= query + self.offset, score, hidden)
        return score if whole else b.select(key < self.visible, score, hidden)

    def _weigh(self, scores: SSAValue, largest: SSAValue) -> SSAValue:
        """Scores become weights, of which the largest is 1; gives by what the weighted values are to be multiplied: 0
        where there are none."""
        b = self.b
        shares = b.alloc("shares", [self._padded(self.rows.scored)], f32)
        vectors = self._steps(self.lanes)
        with b.loop("r", self.rows.number) as r:
            part, total = (b.alloc(name, [self.lanes], f32) for name in ("part", "total"))
            with self._lanes() as i:
                b.store(b.load(largest, [r, i]), part, [i])
                b.store(b.constant(0, f32), total, [i])
            most = b.fold_vector("max", part, self.lanes)
            with b.loop("v", vectors) as v, self._lanes() as lane:
                place = [r, v * self.lanes + lane]
                weight = b.math("exp", b.binary("sub", b.load(scores, place), most))
                b.store(weight, scores, place)
                b.store(b.add(b.load(total, [lane]), weight), total, [lane])
            share = b.binary("div", b.constant(1, f32), b.fold_vector("add", total, self.lanes))
            b.store(share_of_keys(b, self.length, share), shares, [r])
        return shares

    # Values

    def _multiply(self, weights: SSAValue, shares: SSAValue) -> None:
        """The weighted values: chunks of keys by all rows and columns, whose sums wait in a buffer."""
        b, rows = self.b, self._padded(self.rows.weighted)
        padded = ceil(self.width / self.lanes) * self.lanes
        sums = b.alloc("sums", [rows, padded], f32)
        with b.loop("r", rows) as r, self._lanes(padded // self.lanes) as i:
            b.store(b.constant(0, f32), sums, [r, i])
        with b.loop("chunk", self._steps(_CHUNK)) as chunk:
            first = chunk * _CHUNK
            keys = first, (self.visible - first).min(min(_CHUNK, self.n))
            whole, rest = divmod(self.width, self.columns)
            if whole:
                with b.loop("panel", whole, at_once=1) as panel:
                    self._panel(weights, sums, keys, panel * self.columns, self.columns)
            if rest:
                self._panel(weights, sums, keys, b.index(whole * self.columns), rest)
        with b.loop("r", self.rows.number) as r, self._lanes(padded // self.lanes) as e:
            head, query = self._place(r)
            share = b.load(shares, [r])
            value = b.mul(b.load(sums, [r, e]), share)
            if self.anchor.guard.value.data:
                value = b.select(b.binary("ne", share, share), b.constant(0, f32), value)
            own = self.first_query + r // self.anchor.group_size
            exists = [own < self.m] if self.m % self.queries else []
            where = all_of([*exists, *self._inside(e, self.width)])
            b.store(value, b.output, [*head, query if not exists else own, e], where)

    def _inside(self, e: Index, used: int) -> list[Predicate]:
        """When a column exists; nothing where all of its vector do."""
        return [e < used] if used % self.lanes else []

    def _panel(self, weights: SSAValue, sums: SSAValue, keys: tuple[Index, Index], column: Index, used: int) -> None:
        """Adds the products of a chunk's weights and values to some columns of the sums, tile by tile.

        keys: the first one, and how many
        """
        b, height = self.b, self.rows.weighted
        each = repeat(height, ceil(used / self.lanes) * self.lanes)
        with b.loop("part", self._padded(height) // height, at_once=1) as part:
            row = part * height
            acc = b.alloc("acc", [height, each.shape[1]], f32)
            with b.tasks(["r", "e"], each, unroll=True, vector=True) as (r, e):
                b.store(b.load(sums, [row + r, column + e]), acc, [r, e])
            first, count = keys
            with b.loop("n", count) as k, b.tasks(["r", "e"], each, unroll=True, vector=True) as (r, e):
                n = first + k
                inside = all_of(self._inside(e, used))
                zero = None if inside is None else b.constant(0, f32)
                value = b.load(b.inputs[2], [*self.head, n, column + e], inside, zero)
                weight = b.load(weights, [(row + r).min(self.rows.number - 1), n])
                b.store(b.add(b.load(acc, [r, e]), b.mul(weight, value)), acc, [r, e])
            with b.tasks(["r", "e"], each, unroll=True, vector=True) as (r, e):
                b.store(b.load(acc, [r, e]), sums, [row + r, column + e])
