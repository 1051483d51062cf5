"""Attention of few queries on a CPU, such as a language model's next token: keys and values are read once a group."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType, f32, i32
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.definition import Scalar, widened
from treadle.dialects.graph.elementwise import convert
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, Predicate, all_of, kernel_builder
from treadle.schedules.register_tile import MOST_VECTORS, most_rows
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limits, number
from treadle.schedules.templates.attention_tile import (
    WideRows,
    is_narrow,
    is_static_of_floats,
    is_worth_widening,
    key_range,
    mask_element,
    mask_varies,
    may_see_none,
    share_of_keys,
)
from treadle.target import Target

_MOST_QUERIES = 8
_MOST_PARTS = 64
_LOWEST = -3.4028234663852886e38
"""Of f32."""
_CHUNK = 128
"""Keys whose values all rows of a block are multiplied by before the next ones: they stay in the caches."""


class AttentionDecodeCpu(Template):
    """A block computes `queries` queries of all heads that share a head of keys and values, so that it reads each key
    and each value once: the scores of these rows with all keys, their exponentials and sums, and the weighted values.

    Lanes of scores are neighbouring keys, of which a tile of `vectors` vectors is transposed first; those of the result
    are elements of a value, `columns` vectors at a time. Register tiles have as many rows as fit, evened out. Scores
    stay in the second cache, so that the softmax is exact. Keys beyond a length, and those that causality hides from
    all rows of a block, are not read.

    Keys may be shared out to `parts` blocks, each with its own largest scores, sums and weighted values.

    Source: Shazeer, "Fast Transformer Decoding" (arXiv 1911.02150), section 3, and Ainslie et al., GQA (arXiv
    2305.13245), for heads that share keys; Dao et al., "Flash-Decoding for long-context inference" (2023), for parts.
    """

    name: ClassVar[str] = "attention_decode_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("queries", tuple(range(1, _MOST_QUERIES + 1)), "queries of each head that a block computes"),
        Knob("vectors", tuple(range(1, MOST_VECTORS + 1)), "vectors of keys of a tile of scores"),
        Knob("columns", tuple(range(1, MOST_VECTORS + 1)), "vectors of a value of a tile of the result"),
        Knob(
            "parts", tuple(range(1, _MOST_PARTS + 1)), "blocks that share out the keys of a head; the last one adds up"
        ),
    )

    def fits(self, anchor: Anchor) -> bool:
        return is_static_of_floats(anchor)

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        """From as many keys as a tile has on, where scores stay in the cache. `attention_cpu`, which is tried before,
        takes at least as many queries as a vector has lanes, unless its scores of that many keys exceed the cache.

        `python -m benchmarks.decode_attention 12/12x1x64 12/12x8x64 14/2x1x64 14/2x8x64 14/2x12x64 14/2x16x64
        14/2x64x64 32/8x1x128 32/8x8x128 32/8x16x128 --used 1024 --threads 1` on a Xeon with AVX-512, in three runs
        while other jobs ran: 289, 484, 77, 311, 417, 642, 2161, 430, 1602 and 2762 us with this kernel, 482, 555, 433,
        542, 613, 711, 2026, 1803, 2370 and 2600 with `attention_cpu`, whose vectors are of 16 queries. The time of the
        products and the softmax divided by this kernel's, 12 heads: 0.6 and 0.5 with 8 and 12 keys and as many queries,
        1.1 with 16 keys and 8 queries; with 32 keys 1.7, 1.4, 1.1 and 1.1 for 1, 4, 8 and 15 queries; with 64 and 128
        keys 1.1 to 2.1."""
        if not isinstance(anchor, AttentionOp) or anchor.scores_shape[-1] < _VECTORS * target.lanes:
            return False
        return _default(anchor, target) is not None

    def keeps_whole(self, anchor: Anchor) -> bool:
        return isinstance(anchor, AttentionOp) and is_worth_widening(anchor)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, AttentionOp)
        # A decision by hand may ask for the kernel where it is no default.
        return _default(anchor, target) or {**_choices(anchor, target, 1), "parts": 1}

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
            "parts": min(number(choices, "parts"), ceil(n / target.lanes)),
        }

    def listed(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """One query and all that a block may have, in tiles of up to four vectors, with the default's parts."""
        assert isinstance(anchor, AttentionOp)
        tried = [
            {"queries": queries, "vectors": vectors, "columns": columns, "parts": _parts(anchor, target, queries)}
            for queries in (1, _MOST_QUERIES)
            for vectors in (1, 2, 3, 4)
            for columns in (1, 2, 3, 4)
        ]
        return self.canonical_forms(anchor, target, tried)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        return _DecodeKernel(anchor, choices, target).build(name)


_FEWEST_KEYS = 128
"""Keys of a part."""
_VECTORS = 2
_COLUMNS = 4
"""Vectors of a default tile of scores, and of the result."""


def _choices(anchor: AttentionOp, target: Target, queries: int) -> dict[str, Choice]:
    return {
        "queries": queries,
        "vectors": _VECTORS,
        "columns": min(_COLUMNS, ceil(anchor.shape[-1] / target.lanes)),
        "parts": _parts(anchor, target, queries),
    }


def _parts(anchor: AttentionOp, target: Target, queries: int) -> int:
    """Parts of the keys of which every core has one, and each `_FEWEST_KEYS` or more; 1 where there are enough
    blocks."""
    blocks = _shared_heads(anchor) * ceil(anchor.shape[-2] / queries)
    return max(1, min(target.cores // blocks, anchor.scores_shape[-1] // _FEWEST_KEYS, _MOST_PARTS))


def _default(anchor: AttentionOp, target: Target) -> dict[str, Choice] | None:
    """As many queries as a block may have, evened out, and more parts where the scores of these exceed the second
    cache; None where those of the most parts do."""
    m = anchor.shape[-2]
    choices = _choices(anchor, target, ceil(m / ceil(m / _MOST_QUERIES)))
    for parts in range(number(choices, "parts"), _MOST_PARTS + 1):
        choices["parts"] = parts
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
    tiles = ceil(ceil(anchor.scores_shape[-1] / keys) / number(choices, "parts"))
    columns = tiles * keys + anchor.q.type.get_shape()[-1] + anchor.shape[-1]
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


@dataclass(frozen=True)
class _Weighed:
    """Of each row the largest score of a block, and the sum of its weights, in buffers."""

    peaks: SSAValue
    totals: SSAValue


@dataclass(frozen=True)
class _Chunk:
    """Keys whose values are multiplied before the next ones: the first, the column of its weights, and how many."""

    first: Index
    column: Index
    count: Index


class _DecodeKernel:
    """Writes the kernel of one attention."""

    def __init__(self, anchor: AttentionOp, choices: Choices, target: Target):
        self.anchor = anchor
        self.m, self.n = anchor.scores_shape[-2:]
        assert isinstance(anchor.q.type, TensorType) and isinstance(anchor.k.type, TensorType)
        self.size, self.width = anchor.q.type.get_shape()[-1], anchor.shape[-1]
        self.element = anchor.type.get_element_type()
        self.lanes, self.queries = target.lanes, number(choices, "queries")
        self.rows = _Rows.of(anchor, choices, target)
        self.keys, self.columns = (number(choices, knob) * target.lanes for knob in ("vectors", "columns"))
        self.is_causal = bool(anchor.causal.value.data)
        self.shared = anchor.k.type.get_shape()[:-2]
        self.parts = number(choices, "parts")
        self.most_tiles = ceil(ceil(self.n / self.keys) / self.parts)
        self.b = kernel_builder(anchor.operands, anchor.type)

    def build(self, name: str) -> KernelOp:
        b, anchor = self.b, self.anchor
        heads = prod(self.shared)
        self.unit, self.part = b.block // self.parts, b.block % self.parts
        # Heads change fastest, so that a call of fewer queries has the first blocks.
        self.first_query = (self.unit // heads) * self.queries
        self.head = (self.unit % heads).delinearize(self.shared) if self.shared else []
        self.length, self.offset = key_range(b, anchor)
        self.visible = self._visible()
        self.first_tile, self.last_tile = self._tiles()
        # The tiles of one part reach as far as its keys.
        self.last_key = self.visible if self.parts == 1 else (self.last_tile * self.keys).min(self.visible)
        query = self._packed_queries()
        columns = self.most_tiles * self.keys
        # Chunks of a part may overhang it, as far as is proved.
        columns = columns if self.parts == 1 else ceil(columns / _CHUNK) * _CHUNK
        scores = b.alloc("scores", [self._padded(self.rows.scored), columns], f32)
        largest = self._scores(query, scores)
        weighed = self._weigh(scores, largest)
        sums = self._multiply(scores)
        if self.parts == 1:
            self._store(weighed.totals, lambda r, e: b.load(sums, [r, e]))
        else:
            self._add_up(weighed, sums, ceil(self.m / self.queries) * heads)
        kind = "causal attention" if self.is_causal else "attention"
        comment = f"{kind} of {self.m} queries of {self.size} elements, {self.n} keys and values of {self.width}"
        blocks = heads * ceil(self.m / self.queries) * self.parts
        return b.kernel(name, anchor.operands, anchor.type, blocks, 1, comment)

    def _visible(self) -> Index:
        """Keys that the blocks of these rows read."""
        b = self.b
        if not self.is_causal:
            return b.index(self.length)
        seen = self.first_query + (self.offset + self.queries)
        # Rows that see no key divide by the sum of a hidden one's weights, which is NaN, as the definition has it.
        seen = seen.max(1) if may_see_none(self.offset) else seen
        return seen.min(self.length)

    def _tiles(self) -> tuple[Index, Index]:
        """The first of the block's tiles of keys, and the one behind its last: an even part of those that are read."""
        tiles = ((self.visible + (self.keys - 1)) // self.keys).min(ceil(self.n / self.keys))
        if self.parts == 1:
            return self.b.index(0), tiles
        each = (tiles + (self.parts - 1)) // self.parts
        first = self.part * each
        return first.min(tiles), (first + each).min(tiles)

    @contextmanager
    def _loop(self, name: str, ends: tuple[Index, Index], bound: int, each: int = 1) -> Generator[tuple[Index, Index]]:
        """A loop over what the block takes of a range below a bound, `each` steps a tile: the number in the range, and
        from the block's first one on."""
        first, last = ends
        if self.parts == 1:
            with self.b.loop(name, last.min(bound)) as i:
                yield i, i
            return
        # That no number reaches the bound, and how many there are at most, is said for proofs and for predictions.
        with self.b.loop(name, (last - first).max(0).min(self.most_tiles * each)) as i:
            yield (first + i).min(bound - 1), i

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
            b.store(widened(b, b.load(b.inputs[0], [*head, position, d])), query, [d, r])
        return query

    # Scores

    def _scores(self, query: SSAValue, scores: SSAValue) -> SSAValue:
        """Writes the scaled and masked scores of the keys that the block sees, and gives the largest of each row, in
        each lane that of its keys."""
        b = self.b
        largest = b.alloc("largest", [self._padded(self.rows.scored), self.lanes], f32)
        with b.loop("r", self._padded(self.rows.scored)) as r, self._lanes() as i:
            b.store(b.constant(-inf, f32), largest, [r, i])
        whole = self.visible // self.keys
        bound = self.n // self.keys
        if bound:
            with self._loop("tile", (self.first_tile, whole.min(self.last_tile)), bound) as (tile, own):
                self._tile((tile * self.keys, own * self.keys), query, scores, largest, whole=True)
        here = [whole < self.last_tile, *([self.first_tile <= whole] if self.parts > 1 else [])]
        with b.when(all_of(here)):
            own = whole if self.parts == 1 else (whole - self.first_tile).max(0).min(self.most_tiles - 1)
            self._tile((whole * self.keys, own * self.keys), query, scores, largest, whole=False)
        return largest

    def _tile(
        self, begin: tuple[Index, Index], query: SSAValue, scores: SSAValue, largest: SSAValue, *, whole: bool
    ) -> None:
        """The scores of all rows with a tile of keys, of which those from `visible` on do not count.

        begin: the tile's first key, and the column of its scores
        """
        first, column = begin
        b, height = self.b, self.rows.scored
        key = b.alloc("key", [self.size, self.keys], f32)
        wide = self._widened_keys(first, whole=whole) if is_narrow(b.inputs[1]) else None
        with b.loop("d", self.size) as d, self._lanes(self.keys // self.lanes) as i:
            exists = None if whole or wide is not None else first + i < self.visible
            zero = None if exists is None else b.constant(0, f32)
            element = wide.load(i, d) if wide else b.load(b.inputs[1], [*self.head, first + i, d], exists, zero)
            b.store(element, key, [d, i])
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
                b.store(score, scores, [row + r, column + i])
                b.store(b.binary("max", b.load(largest, [row + r, lane]), score), largest, [row + r, lane])

    def _widened_keys(self, first: Index, *, whole: bool) -> WideRows:
        """The tile's keys as f32; the last one again beyond it."""

        def number(n: Index) -> Index:
            return first + n if whole else (first + n).min(self.visible - 1)

        return WideRows.of(self.b, self.b.inputs[1], self.head, number, self.keys)

    def _score(self, product: SSAValue, row: Index, key: Index, *, whole: bool) -> SSAValue:
        """The scaled and masked product of a query and a key, -inf where it does not see the key."""
        b, scale = self.b, self.anchor.scale.value.data
        score = product if scale == 1 else b.mul(product, b.constant(scale, f32))
        head, query = self._place(row)
        if self.anchor.mask is not None:
            ends = (None, None if whole else self.visible)
            score = b.add(score, widened(b, mask_element(b, self.anchor, head, query, key, ends)))
        hidden = b.constant(-inf, f32)
        if (self.is_causal and self.queries > 1) or (self.is_causal and not whole and may_see_none(self.offset)):
            score = b.select(key <= query + self.offset, score, hidden)
        return score if whole else b.select(key < self.visible, score, hidden)

    def _weigh(self, scores: SSAValue, largest: SSAValue) -> _Weighed:
        """Scores become weights, of which the largest of the block's is 1; gives that score and the sum of each row."""
        b, rows = self.b, self._padded(self.rows.scored)
        weighed = _Weighed(b.alloc("peaks", [rows], f32), b.alloc("totals", [rows], f32))
        per_tile = self.keys // self.lanes
        last = (self.last_key + (self.lanes - 1)) // self.lanes
        with b.loop("r", self.rows.number) as r:
            part, total = (b.alloc(name, [self.lanes], f32) for name in ("part", "total"))
            with self._lanes() as i:
                b.store(b.load(largest, [r, i]), part, [i])
                b.store(b.constant(0, f32), total, [i])
            peak = b.fold_vector("max", part, self.lanes)
            b.store(peak, weighed.peaks, [r])
            # A part that hides all its keys from a row has weights of 0 there.
            most = peak if self.parts == 1 else b.binary("max", peak, b.constant(_LOWEST, f32))
            ends = self.first_tile * per_tile, last
            bound = ceil(self.n / self.keys) * per_tile
            with self._loop("v", ends, bound, per_tile) as (_, v), self._lanes() as lane:
                place = [r, v * self.lanes + lane]
                weight = b.math("exp", b.binary("sub", b.load(scores, place), most))
                b.store(weight, scores, place)
                b.store(b.add(b.load(total, [lane]), weight), total, [lane])
            b.store(b.fold_vector("add", total, self.lanes), weighed.totals, [r])
        return weighed

    # Values

    def _multiply(self, weights: SSAValue) -> SSAValue:
        """The weighted values: chunks of keys by all rows and columns, whose sums wait in a buffer."""
        b, rows, padded = self.b, self._padded(self.rows.weighted), self._columns
        sums = b.alloc("sums", [rows, padded], f32)
        with b.loop("r", rows) as r, self._lanes(padded // self.lanes) as i:
            b.store(b.constant(0, f32), sums, [r, i])
        begin = self.first_tile * self.keys
        chunks = ((self.last_key - begin).max(0) + (_CHUNK - 1)) // _CHUNK
        with b.loop("chunk", chunks.min(ceil(self.most_tiles * self.keys / _CHUNK))) as chunk:
            first = begin + chunk * _CHUNK
            keys = _Chunk(first, chunk * _CHUNK, (self.last_key - first).min(min(_CHUNK, self.n)))
            whole, rest = divmod(self.width, self.columns)
            if whole:
                with b.loop("panel", whole, at_once=1) as panel:
                    self._panel(weights, sums, keys, panel * self.columns, self.columns)
            if rest:
                self._panel(weights, sums, keys, b.index(whole * self.columns), rest)
        return sums

    @property
    def _columns(self) -> int:
        """Elements of a row of the result, in whole vectors."""
        return ceil(self.width / self.lanes) * self.lanes

    def _add_up(self, weighed: _Weighed, sums: SSAValue, units: int) -> None:
        """Every part stores its rows; the last block of a head to arrive adds them up, always in the parts' order."""
        b, rows = self.b, self.rows.number
        shape = [units, self.parts, rows]
        peaks, totals = (b.alloc(f"part_{name}", shape, f32, Space.DEVICE) for name in ("peaks", "totals"))
        parts = b.alloc("part_sums", [*shape, self._columns], f32, Space.DEVICE)
        with b.loop("r", rows) as r:
            place = [self.unit, self.part, r]
            b.store(b.load(weighed.peaks, [r]), peaks, place)
            b.store(b.load(weighed.totals, [r]), totals, place)
            with self._lanes(self._columns // self.lanes) as e:
                b.store(b.load(sums, [r, e]), parts, [*place, e])
        last = b.arrive(b.alloc("counters", [units], i32, Space.ZEROED), self.unit, self.parts)
        last.name_hint = "last"
        with b.when(last):
            merged = b.alloc("merged", [rows, self._columns], f32)
            total = b.alloc("all_totals", [rows], f32)
            with b.loop("r", rows) as r:
                largest = b.fold(
                    "p", self.parts, b.constant(_LOWEST, f32),
                    lambda p, peak: b.binary("max", peak, b.load(peaks, [self.unit, p, r])),
                )  # fmt: skip
                b.store(b.constant(0, f32), total, [r])
                with self._lanes(self._columns // self.lanes) as e:
                    b.store(b.constant(0, f32), merged, [r, e])
                with b.loop("p", self.parts) as p:
                    place = [self.unit, p, r]
                    factor = b.math("exp", b.binary("sub", b.load(peaks, place), largest))
                    b.store(b.add(b.load(total, [r]), b.mul(factor, b.load(totals, place))), total, [r])
                    with self._lanes(self._columns // self.lanes) as e:
                        added = b.mul(factor, b.load(parts, [*place, e]))
                        b.store(b.add(b.load(merged, [r, e]), added), merged, [r, e])
            self._store(total, lambda r, e: b.load(merged, [r, e]))

    def _store(self, totals: SSAValue, sum: Callable[[Index, Index], Scalar]) -> None:
        """Sums divided by those of the weights; 0 where no key exists, NaN where all are hidden."""
        b = self.b
        with b.loop("r", self.rows.number) as r:
            head, query = self._place(r)
            total = b.load(totals, [r])
            share = b.binary("div", b.constant(1, f32), total)
            if self.parts > 1:
                # A sum of 0 divided by itself.
                share = b.binary("div", b.binary("div", total, total), total)
            share = share_of_keys(b, self.length, share)
            with self._lanes(self._columns // self.lanes) as e:
                value = b.mul(sum(r, e), share)
                if self.anchor.guard.value.data:
                    value = b.select(b.binary("ne", share, share), b.constant(0, f32), value)
                own = self.first_query + r // self.anchor.group_size
                exists = [own < self.m] if self.m % self.queries else []
                where = all_of([*exists, *self._inside(e, self.width)])
                value = convert(b, value, self.element)
                b.store(value, b.output, [*head, query if not exists else own, e], where)

    def _inside(self, e: Index, used: int) -> list[Predicate]:
        """When a column exists; nothing where all of its vector do."""
        return [e < used] if used % self.lanes else []

    def _panel(self, weights: SSAValue, sums: SSAValue, keys: _Chunk, column: Index, used: int) -> None:
        """Adds the products of a chunk's weights and values to some columns of the sums, tile by tile."""
        b, height = self.b, self.rows.weighted
        each = repeat(height, ceil(used / self.lanes) * self.lanes)
        with b.loop("part", self._padded(height) // height, at_once=1) as part:
            row = part * height
            acc = b.alloc("acc", [height, each.shape[1]], f32)
            with b.tasks(["r", "e"], each, unroll=True, vector=True) as (r, e):
                b.store(b.load(sums, [row + r, column + e]), acc, [r, e])
            with b.loop("n", keys.count) as k, b.tasks(["r", "e"], each, unroll=True, vector=True) as (r, e):
                inside = all_of(self._inside(e, used))
                zero = None if inside is None else b.constant(0, self.element)
                value = widened(b, b.load(b.inputs[2], [*self.head, keys.first + k, column + e], inside, zero))
                weight = b.load(weights, [(row + r).min(self.rows.number - 1), keys.column + k])
                b.store(b.add(b.load(acc, [r, e]), b.mul(weight, value)), acc, [r, e])
            with b.tasks(["r", "e"], each, unroll=True, vector=True) as (r, e):
                b.store(b.load(acc, [r, e]), sums, [row + r, column + e])
