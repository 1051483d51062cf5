"""Attention on tensor cores: scores and weights never leave the registers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import ceil, inf, log2, prod
from math import e as euler
from typing import ClassVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, BFloat16Type, Float16Type, TensorType, VectorType, f32
from xdsl.ir import SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.elementwise import convert
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.loop.tiles import WARP, fragments
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, all_of, kernel_builder, narrowed
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limit, check_limits
from treadle.schedules.templates.attention_mma_tile import (
    CHUNK,
    STEP,
    AttentionMmaTile,
    HeadTile,
    Sums,
    finite,
    merge,
    scale,
)
from treadle.schedules.templates.attention_tile import (
    blocks_of,
    mask_element,
    mask_varies,
    overhangs,
    ragged_end,
    share_of_keys,
    work_tile,
)
from treadle.schedules.templates.matmul_mma_tile import PRODUCT_M, PRODUCT_N
from treadle.target import GPUS, Target

_COLUMNS = (16, 32, 64, 128)
_PARTS = (1, 2, 4)
_LARGEST_SIZE = 256
"""Elements of a head: a warp copies a line of so many at once."""
_MOST_SLABS = 2
"""Tile products of a warp below one another: what is loaded of keys and values serves so many."""
_OTHER_REGISTERS = 80
"""What statistics, predicates, copies and fragments in flight take beside matrices; generous, since a spill costs more
than it saves."""
_MOST_THREADS = 256
"""Of a block: more could not have as many registers each."""
_DEFAULTS = ((128, 4), (64, 4), (32, 2), (16, 1))
"""Rows and warps of default blocks."""
_DEFAULT_COLUMNS = 64
_SCHEDULERS = 4
"""Warps that a multiprocessor runs at a time."""


class AttentionMma(Template):
    """A block computes `rows` rows of one head, each warp its own. Tiles of `columns` keys and values travel to
    swizzled shared memory by asynchronous copies, `stages` at a time. A warp keeps in registers its queries, as
    operands of tile products; the scores of a tile, which become the weights and then, as they lie, operands of the
    second product; and the largest score so far, the sum of the weights relative to it, and the result so far, which
    are scaled down when a larger score appears. `parts` warps may share rows: each takes some keys of every tile, and
    in the end they add up their sums, scaled down to the largest score of all.

    Scores, weights and sums are f32; weights are rounded once more where they are multiplied with values.
    Every size is covered: what is fetched beyond the end is 0, keys beyond the end weigh nothing, rows beyond the end
    are not stored. Tiles of keys that causality hides from all rows of a block are skipped; a hidden value that is
    not finite makes rows NaN only where its tile is not skipped.

    Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", ICLR 2024,
    algorithm 1 and section 3.3; Milakov and Gimelshein (arXiv 1805.02867), algorithm 3, for the running sum.
    """

    name: ClassVar[str] = "attention_mma"
    kind: ClassVar[str] = "cuda"
    least_capability: ClassVar[int] = 80
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("rows", (16, 32, 64, 128), "queries of a block"),
        Knob("columns", _COLUMNS, "keys and values of a tile in shared memory"),
        Knob("warps", (1, 2, 4, 8), "warps along the rows of a block"),
        Knob("parts", _PARTS, "warps that share rows, each with a part of a tile's keys"),
        Knob("stages", (2, 3), "tiles of keys and of values in shared memory"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, AttentionOp) or DYNAMIC_INDEX in (*anchor.scores_shape, *anchor.shape):
            return False
        extents = _extents(anchor)
        if not isinstance(anchor.type.get_element_type(), Float16Type | BFloat16Type) or not prod(extents):
            return False
        if max(extents[-2:]) > _LARGEST_SIZE:
            return False
        return all(_default(anchor, target) is not None for target in GPUS if self.runs_on(target))

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        return isinstance(anchor, AttentionOp) and _default(anchor, target) is not None

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, AttentionOp)
        found = _default(anchor, target)
        assert found is not None, "asked for without has_default"
        return found

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, AttentionOp)
        tile = _tile(anchor, choices)
        least, most, each = PRODUCT_M, _MOST_SLABS * PRODUCT_M, tile.rows // tile.warps
        shared, accepted = f"{tile.rows} rows for {tile.warps} warps are {each} each", f"{least} to {most} rows a warp"
        message = f"attention_mma: {shared}, {least - each} too few"
        check_limit("rows that a warp needs", least, each, message=message, accepted=accepted)
        message = f"attention_mma: {shared}, {each - most} too many"
        check_limit("rows of a warp", each, most, message=message, accepted=accepted)
        check_limit(
            "keys that a warp needs",
            STEP,
            tile.own_columns,
            message=f"attention_mma: {tile.columns} keys in {tile.parts} parts are {tile.own_columns} each, "
            f"{STEP - tile.own_columns} too few",
            accepted=f"at least {STEP} keys a warp",
        )
        values = f"{tile.rows} queries of {tile.size} elements and {tile.columns} values of {tile.width}"
        who = f"attention_mma with {values} in {tile.stages} stages"
        check_limits(who, _usage(anchor, tile, target), target)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        return AttentionMmaKernel(anchor, _tile(anchor, choices)).build(name)


def _usage(anchor: AttentionOp, tile: AttentionMmaTile, target: Target) -> tuple[tuple[str, int, int], ...]:
    """What a tile takes of the resources that bound it, and how much there is."""
    registers = tile.registers + _mask_registers(anchor, tile) + _OTHER_REGISTERS
    return (
        ("threads", tile.threads, _MOST_THREADS),
        ("bytes of shared memory", tile.shared_bytes, target.shared_per_block),
        ("registers a thread", registers, target.registers_per_thread),
    )


def _mask_registers(anchor: AttentionOp, tile: AttentionMmaTile) -> int:
    """Registers for the mask's elements of a thread's scores, which are there before these are."""
    if anchor.mask is None:
        return 0
    assert isinstance(anchor.mask.type, TensorType)
    along_rows, along_keys = mask_varies(anchor.mask.type)
    return (2 * tile.slabs if along_rows else 1) * (tile.own_columns // 4 if along_keys else 1)


def _extents(anchor: AttentionOp) -> tuple[int, ...]:
    """Every extent of the operator: batch, heads, queries and keys, the sizes of queries and values."""
    assert isinstance(anchor.q.type, TensorType)
    return (*anchor.scores_shape, anchor.q.type.get_shape()[-1], anchor.shape[-1])


def _tile(anchor: AttentionOp, choices: Choices) -> AttentionMmaTile:
    return AttentionMmaTile.of(choices, *_extents(anchor)[-2:])


def _default(anchor: AttentionOp, target: Target) -> dict[str, Choice] | None:
    """64 keys, or as many as there are, and the most rows, no more than there are, of which three quarters of the
    multiprocessors get a block; fewer rows, then keys, while the target has no room. None where it has none. Warps
    share rows where there are too few of them."""
    *batch, m, n, _, _ = _extents(anchor)
    heads = prod(batch)
    columns = min(_DEFAULT_COLUMNS, next((c for c in _COLUMNS if c >= n), _COLUMNS[-1]))
    useful = [each for each in _DEFAULTS if each[0] < 2 * m] or [_DEFAULTS[-1]]
    busy = [each for each in useful if 4 * heads * ceil(m / each[0]) >= 3 * target.multiprocessors] or useful[-1:]
    smaller = [each for each in _DEFAULTS if each[0] < busy[-1][0]]
    fewer = [c for c in reversed(_COLUMNS) if c <= columns]
    for (rows, warps), keys in sorted(product([*busy, *smaller], fewer), key=lambda each: -each[1]):
        parts = _parts(heads * ceil(m / rows) * warps, warps, keys, target)
        choices: dict[str, Choice] = {"rows": rows, "columns": keys, "warps": warps, "parts": parts, "stages": 2}
        if all(used <= limit for _, used, limit in _usage(anchor, _tile(anchor, choices), target)):
            return choices
    return None


def _parts(total: int, warps: int, columns: int, target: Target) -> int:
    """How many warps share rows, where one of them each gives so many in `total` and `warps` a block: as few as give
    every scheduler a warp, as far as keys and threads suffice."""
    wanted = next((p for p in _PARTS if p * total >= _SCHEDULERS * target.multiprocessors), _PARTS[-1])
    return min(wanted, columns // STEP, _MOST_THREADS // WARP // warps)


# The kernel of attention on tensor cores, written for given tiles.

_PAIR = STEP // PRODUCT_N
"""Tile products side by side whose operand B is loaded at once, and whose result is an operand A."""
_HALVES = 2
"""Rows of a tile product's result that a lane holds, 8 apart; of each, two neighbours."""
_QUAD = 4
"""Neighbouring lanes that hold a row of a tile product's result."""


@dataclass(frozen=True, eq=False)
class _Operand:
    """Queries, keys or values, and where a tile of them lies in shared memory; total: lines of a head."""

    buffer: SSAValue
    head: Sequence[Index]
    total: Index | int
    tile: HeadTile
    shared: SSAValue


class AttentionMmaKernel:
    """Writes the kernel of one attention: see `AttentionMma`.

    Buffers of registers are indexed by slab r (16 rows of the warp), then by two indices p and q of neighbouring tile
    products, which make up 16 columns, then by half h (the lane's row of the slab, and the one 8 below it), then by
    the neighbour c of two.
    """

    def __init__(self, anchor: AttentionOp, tile: AttentionMmaTile):
        self.anchor, self.tile = anchor, tile
        self.m, self.n = anchor.scores_shape[-2:]
        self.element = anchor.type.get_element_type()
        self.fragments = fragments(self.element, self.element)
        self.b = kernel_builder(anchor.operands, anchor.type)
        for buffer, hint in zip(self.b.inputs, ("Q", "K", "V", "M"), strict=False):
            buffer.name_hint = hint

    @property
    def _scale(self) -> tuple[float, float]:
        """The factor of products, and that of what is exponentiated base 2: together scale times log2 e. One would do,
        but where it overflows: masks reach the end of f32's range, and products, for a factor above 1."""
        scale = self.anchor.scale.value.data
        whole = scale * log2(euler)
        return (whole, 1) if self.anchor.mask is None and abs(whole) <= 1 else (scale, log2(euler))

    def build(self, name: str) -> KernelOp:
        """The kernel; to be called once."""
        b, tile = self.b, self.tile
        self.work = work_tile(b, self.anchor, tile.rows, tile.columns)
        warp, self.lane = b.thread // WARP, b.thread % WARP
        self.warp_row = (warp % tile.warps) * (tile.slabs * PRODUCT_M)
        self.part = warp // tile.warps
        self.first_column = self.part * tile.own_columns
        self.queries, self.keys, self.values = self._operands()
        self.acc = b.alloc("acc", [tile.slabs, tile.padded_width // STEP, _PAIR], self.fragments[2])
        self._clear(self.acc, tile.padded_width)
        self.largest, self.total = self._statistics("largest", -inf), self._statistics("total", 0)
        self._pipeline()
        if tile.parts > 1:
            merge(b, tile, self.part, Sums(self.acc, self.largest, self.total), self.fragments[2], self._weight)
        self._store()
        heads, size, width = prod(self.anchor.shape[:-2]), tile.size, tile.width
        comment = f"{heads} heads: softmax(Q[{self.m}, {size}] * K[{self.n}, {size}]^T) * V[{self.n}, {width}]"
        grid = blocks_of(self.anchor, tile.rows)
        return b.kernel(name, list(self.anchor.operands), self.anchor.type, grid, tile.threads, comment, 1)

    def _operands(self) -> tuple[_Operand, _Operand, _Operand]:
        """Queries share a buffer with the result, which replaces them; keys and values have one for each stage."""
        b, tile, work = self.b, self.tile, self.work
        q, k, v, *_ = b.inputs
        outer = max(tile.queries, tile.result, key=lambda t: t.extent)
        lines = b.alloc("lines", [tile.rows, outer.extent], self.element, Space.SHARED, outer.swizzle)

        def staged(name: str, of: HeadTile) -> SSAValue:
            return b.alloc(name, [tile.stages, of.lines, of.extent], self.element, Space.SHARED, of.swizzle)

        return (
            _Operand(q, work.head, self.m, tile.queries, lines),
            _Operand(k, work.shared_head, work.length, tile.keys, staged("keys", tile.keys)),
            _Operand(v, work.shared_head, work.length, tile.values, staged("values", tile.values)),
        )

    def _statistics(self, name: str, initial: float) -> SSAValue:
        """A register for each row of the lane."""
        b = self.b
        buffer = b.alloc(name, [self.tile.slabs, _HALVES], f32)
        with b.tasks(["r", "h"], repeat(self.tile.slabs, _HALVES), unroll=True) as (r, h):
            b.store(b.constant(initial, f32), buffer, [r, h])
        return buffer

    def _clear(self, products: SSAValue, columns: int) -> None:
        b = self.b
        with b.tasks(["r", "p", "q"], repeat(self.tile.slabs, columns // STEP, _PAIR), unroll=True) as where:
            b.store(b.zeros(self.fragments[2]), products, where)

    @contextmanager
    def _chunks(self, tile: HeadTile, worker: Index, workers: int) -> Generator[tuple[Index, Index]]:
        """A loop over a worker's chunks of a tile: line, first column. Neighbours take neighbouring chunks."""
        b, high, wide = self.b, tile.lines_at_once(workers), tile.chunks
        busy = worker < high * wide if high * wide < workers else None
        with b.when(busy), b.loop("u", ceil(tile.lines / high), unroll=True) as u:
            line = u * high + worker // wide
            with b.when(line < tile.lines if tile.lines % high else None):
                yield line, (worker % wide) * CHUNK

    def _fetch(self, operand: _Operand, first: Index, stage: Sequence[Index]) -> None:
        """Starts the copies of the tile that begins with line `first`, 0 beyond the end."""
        b, tile = self.b, operand.tile
        with self._chunks(tile, b.thread, self.tile.threads) as (line, column):
            index = first + line

            def value(e: Index) -> Scalar:
                at = column + e
                inside = [index < operand.total] if overhangs(operand.total, tile.lines) else []
                inside += [at < tile.size] if tile.size < tile.extent else []
                indices = [*operand.head, index, at]
                if not inside:
                    return b.load(operand.buffer, indices)
                return b.load(operand.buffer, indices, all_of(inside), b.constant(0, self.element))

            b.copy(operand.shared, [*stage, line, column], CHUNK, value)

    def _fetch_step(self, step: Index, stage: Index) -> None:
        """Starts the copies of a step's keys and values, if there are any."""
        b = self.b
        with b.when(step < self.work.tiles):
            for operand in (self.keys, self.values):
                self._fetch(operand, step * self.tile.columns, [stage])

    def _pipeline(self) -> None:
        """`stages` tiles of keys and values in shared memory: one is used while the others are being copied."""
        b, stages = self.b, self.tile.stages
        self._fetch(self.queries, self.work.first_row, [])
        b.commit()
        with b.loop("s", stages - 1) as s:
            self._fetch_step(s, s)
            b.commit()
        b.wait(stages - 1)
        b.barrier()
        queries = self._query_fragments()
        with b.loop("step", self.work.tiles) as step:
            b.wait(stages - 2)
            # Behind it every thread sees this step's tiles, and has used those that are overwritten next.
            b.barrier()
            following = step + (stages - 1)
            self._fetch_step(following, following % stages)
            b.commit()
            stage = step % stages
            scores = self._scores(step, stage, queries)
            self._weigh(scores)
            self._accumulate(stage, scores)

    def _query_fragments(self) -> SSAValue:
        """The warp's queries as operands A, in registers."""
        b, tile = self.b, self.tile
        type = self.fragments[0]
        queries = b.alloc("query_fragments", [tile.slabs, tile.padded_size // STEP], type)
        with b.tasks(["r", "k"], repeat(tile.slabs, tile.padded_size // STEP), unroll=True) as (r, k):
            row = self._slab(r) + self.lane % STEP
            column = k * STEP + (self.lane // STEP) * PRODUCT_N
            b.store(b.load_matrix(self.queries.shared, [row, column], type), queries, [r, k])
        return queries

    def _slab(self, r: Index) -> Index:
        """The first row of the warp's r-th slab, in the block's tile."""
        return self.warp_row + r * PRODUCT_M

    def _row(self, r: Index, h: Index) -> Index:
        """The lane's row of half h of slab r, in the block's tile."""
        return self._slab(r) + (h * (PRODUCT_M // _HALVES) + self.lane // _QUAD)

    def _column(self, p: Index, q: Index, c: Index) -> Index:
        """The lane's column of neighbour c in tile product (p, q)."""
        return p * STEP + q * PRODUCT_N + (self._lane_column + c)

    @property
    def _lane_column(self) -> Index:
        """The first column of a tile product of which the lane holds elements."""
        return (self.lane % _QUAD) * 2

    def _products(self, step: Index, stage: Index, queries: SSAValue) -> SSAValue:
        """Tile products of the warp's queries with the stage's keys."""
        b, tile = self.b, self.tile
        products = b.alloc("products", [tile.slabs, tile.own_columns // STEP, _PAIR], self.fragments[2])
        self._clear(products, tile.own_columns)
        type = VectorType(self.element, [_PAIR, *self.fragments[1].get_shape()])
        with (
            b.loop("k", tile.padded_size // STEP, unroll=True) as k,
            b.loop("p", tile.own_columns // STEP, unroll=True) as p,
        ):
            line = (self.lane // STEP) * PRODUCT_N + self.lane % PRODUCT_N
            half = ((self.lane // PRODUCT_N) % 2) * PRODUCT_N
            key = self.first_column + (p * STEP + line)
            indices = [stage, key, k * STEP + half]
            keys = b.load_matrix(self.keys.shared, indices, type)
            with b.tasks(["r", "q"], repeat(tile.slabs, _PAIR), unroll=True) as (r, q):
                self._multiply(b.load(queries, [r, k]), keys, products, [r, p, q])
        return products

    def _multiply(self, a: SSAValue, pair: SSAValue, sums: SSAValue, where: Sequence[Index]) -> None:
        """Adds the product of `a` and of one of a pair of operands B to a sum."""
        b = self.b
        right = b.extract(pair, [where[-1]], self.fragments[1])
        b.store(b.mma(a, right, b.load(sums, where)), sums, where)

    def _scores(self, step: Index, stage: Index, queries: SSAValue) -> SSAValue:
        """Scaled and masked products of the lane's rows and the stage's keys, -inf where a row does not see a key."""
        b, tile = self.b, self.tile
        extents = [tile.slabs, tile.own_columns // STEP, _PAIR, _HALVES, 2]
        added = self._masked(step)
        products = self._products(step, stage, queries)
        scores = b.alloc("scores", extents, f32)
        scale, _ = self._scale
        with b.tasks(["r", "p", "q", "h", "c"], repeat(*extents), unroll=True) as where:
            r, p, q, h, c = where
            score = b.extract(b.load(products, [r, p, q]), [h, c], f32)
            score = score if scale == 1 else b.mul(score, b.constant(scale, f32))
            if added is not None:
                score = b.add(score, convert(b, b.load(added, where), f32))
            b.store(score, scores, where)
        self._hide(step, scores)
        return scores

    def _masked(self, step: Index) -> SSAValue | None:
        """The mask's elements for the lane's scores, in registers: asked for before the products, so that they are
        there after them."""
        b, tile = self.b, self.tile
        if self.anchor.mask is None:
            return None
        type = self.anchor.mask.type
        assert isinstance(type, TensorType)
        extents = [tile.slabs, tile.own_columns // STEP, _PAIR, _HALVES, 2]
        added = b.alloc("added", extents, type.get_element_type())
        ends = (ragged_end(self.m, tile.rows), ragged_end(self.work.length, tile.columns))
        with b.tasks(["r", "p", "q", "h"], repeat(*extents[:-1]), unroll=True) as (r, p, q, h):
            row = self.work.first_row + self._row(r, h)
            with b.loop("c", 2, unroll=True, vector=True) as c:
                column = self._first_key(step) + self._column(p, q, c)
                value = mask_element(b, self.anchor, self.work.head, row, column, ends)
                b.store(value, added, [r, p, q, h, c])
        return added

    def _first_key(self, step: Index) -> Index:
        """The first key of a step's tile that is the warp's."""
        return step * self.tile.columns + self.first_column

    def _hide(self, step: Index, scores: SSAValue) -> None:
        """Makes scores of keys that a row does not see -inf, in the tiles in which there are any."""
        b, tile = self.b, self.tile
        first_key = self._first_key(step)
        length = self.work.length
        ragged, causal = overhangs(length, tile.columns), bool(self.anchor.causal.value.data)
        if not ragged and not causal:
            return
        reach = self.work.first_row + (self.n - self.m)
        needed = first_key + (tile.own_columns - 1) > reach + self.warp_row if causal else None
        if ragged:
            static = isinstance(length, int)
            last = step.equals(self.work.most_tiles - 1) if static else first_key + tile.own_columns > length
            needed = last if needed is None else needed | last
        with b.when(needed), b.tasks(["r", "h"], repeat(tile.slabs, _HALVES), unroll=True) as (r, h):
            last_seen = reach + self._row(r, h) if causal else b.index(length - 1)
            last_seen = last_seen.min(length - 1) if causal and ragged else last_seen
            # What lanes differ in is on one side, so that the other side of all comparisons is a constant.
            limit = last_seen - (first_key + self._lane_column)
            with b.tasks(["p", "q", "c"], repeat(tile.own_columns // STEP, _PAIR, 2), unroll=True) as (p, q, c):
                indices = [r, p, q, h, c]
                visible = p * STEP + q * PRODUCT_N + c <= limit
                b.store(b.select(visible, b.load(scores, indices), b.constant(-inf, f32)), scores, indices)

    def _weigh(self, scores: SSAValue) -> None:
        """Scores become weights, relative to the largest so far; sums and results so far are scaled down to it."""
        b, tile = self.b, self.tile
        shrink = b.alloc("shrink", [tile.slabs, _HALVES], f32)
        columns = repeat(tile.own_columns // STEP, _PAIR, 2)
        with b.tasks(["r", "h"], repeat(tile.slabs, _HALVES), unroll=True) as (r, h):
            peak = b.alloc("peak", [1], f32)
            old = b.load(self.largest, [r, h])
            b.store(old, peak, [0])
            with b.tasks(["p", "q", "c"], columns, unroll=True) as (p, q, c):
                b.store(b.binary("max", b.load(peak, [0]), b.load(scores, [r, p, q, h, c])), peak, [0])
            new = b.fold_lanes("max", b.load(peak, [0]), _QUAD)
            b.store(new, self.largest, [r, h])
            base = finite(b, new)
            factor = self._weight(old, base)
            b.store(factor, shrink, [r, h])
            b.store(b.mul(b.load(self.total, [r, h]), factor), self.total, [r, h])
            with b.tasks(["p", "q", "c"], columns, unroll=True) as (p, q, c):
                weight = self._weight(b.load(scores, [r, p, q, h, c]), base)
                b.store(b.add(b.load(self.total, [r, h]), weight), self.total, [r, h])
                b.store(weight, scores, [r, p, q, h, c])
        scale(b, self.acc, self.fragments[2], (tile.slabs, tile.padded_width // STEP, _PAIR), shrink)

    def _weight(self, score: Scalar, base: Scalar) -> Scalar:
        """The weight of a score relative to another one."""
        b, (_, unit) = self.b, self._scale
        power = b.binary("sub", score, base)
        return b.math("exp2", power if unit == 1 else b.mul(power, b.constant(unit, f32)))

    def _accumulate(self, stage: Index, weights: SSAValue) -> None:
        """Adds the stage's values, each times its weight, to the warp's part of the result. Rounded, the weights of 16
        keys are an operand A as they lie: two results of tile products side by side."""
        b, tile = self.b, self.tile
        type = VectorType(self.element, [_PAIR, *self.fragments[1].get_shape()])
        with b.loop("k", tile.own_columns // STEP, unroll=True) as k:
            left = b.alloc("left", [tile.slabs], self.fragments[0])
            with b.loop("r", tile.slabs, unroll=True) as r:
                rounded = b.alloc("rounded", self.fragments[0].get_shape(), self.element)
                with b.tasks(["q", "h", "c"], repeat(_PAIR, _HALVES, 2), unroll=True) as (q, h, c):
                    weight = narrowed(b, b.load(weights, [r, k, q, h, c]), self.element)
                    b.store(weight, rounded, [q * _HALVES + h, c])
                b.store(b.load_vector(rounded, self.fragments[0]), left, [r])
            with b.loop("p", tile.padded_width // STEP, unroll=True) as p:
                line = self.first_column + (k * STEP + self.lane % STEP)
                column = p * STEP + (self.lane // STEP) * PRODUCT_N
                values = b.load_matrix(self.values.shared, [stage, line, column], type, transpose=True)
                with b.tasks(["r", "q"], repeat(tile.slabs, _PAIR), unroll=True) as (r, q):
                    self._multiply(b.load(left, [r]), values, self.acc, [r, p, q])

    def _store(self) -> None:
        """The result through shared memory to lanes that store 16 bytes of a row each."""
        b, tile = self.b, self.tile
        b.barrier()
        with b.when(self.part.equals(0) if tile.parts > 1 else None):
            self._stage()
        b.barrier()
        with (
            self._chunks(tile.result, b.thread, tile.threads) as (line, first),
            b.tasks(["e"], repeat(CHUNK), unroll=True, vector=True) as (e,),
        ):
            row, column = self.work.first_row + line, first + e
            inside = [row < self.m] if self.m % tile.rows else []
            inside += [column < tile.width] if tile.width < tile.padded_width else []
            value = b.load(self.queries.shared, [line, column])
            b.store(value, b.output, [*self.work.head, row, column], all_of(inside))

    def _stage(self) -> None:
        """The warp's rows of the result, divided by the sums and rounded, into the buffer of its queries."""
        b, tile = self.b, self.tile
        with b.tasks(["r", "h"], repeat(tile.slabs, _HALVES), unroll=True) as (r, h):
            total = b.fold_lanes("add", b.load(self.total, [r, h]), _QUAD)
            share = share_of_keys(b, self.work.length, b.binary("div", b.constant(1, f32), total))
            # The largest score weighs 1, if there is one: a sum that is not positive belongs to a row without scores.
            counts = b.binary("gt", total, b.constant(0, f32)) if self.anchor.guard.value.data else None
            with (
                b.tasks(["p", "q"], repeat(tile.padded_width // STEP, _PAIR), unroll=True) as (p, q),
                b.loop("c", 2, unroll=True, vector=True) as c,
            ):
                value = b.mul(b.extract(b.load(self.acc, [r, p, q]), [h, c], f32), share)
                if counts is not None:
                    value = b.select(counts, value, b.constant(0, f32))
                indices = [self._row(r, h), self._column(p, q, c)]
                b.store(narrowed(b, value, self.element), self.queries.shared, indices)
