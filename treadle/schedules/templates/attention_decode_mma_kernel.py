"""The kernel of attention of few queries on tensor cores: keys and values go from memory to registers, as operands."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, inf, prod

from xdsl.dialects.builtin import TensorType, f32, i32
from xdsl.ir import SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.loop import KernelOp, ShuffleOp, Space
from treadle.dialects.loop.tiles import WARP, fragments
from treadle.dialects.task import repeat, spatial
from treadle.schedules.kernel_builder import Index, Predicate, all_of, kernel_builder, narrowed
from treadle.schedules.template import Choices, number
from treadle.schedules.templates.attention_mma_tile import OnlineSoftmax
from treadle.schedules.templates.attention_tile import (
    key_range,
    mask_element,
    may_see_none,
    share_of_keys,
)
from treadle.schedules.tiles import (
    COLUMNS,
    HALVES,
    PAIR,
    PRODUCT_M,
    PRODUCT_N,
    QUAD,
    Fragment,
    Region,
    TileBuilder,
    TileLayout,
    end_of,
)

LANE = 8
"""Elements of a line that a lane loads at once: 16 bytes."""
_KEY_CHUNK, _VALUE_CHUNK = QUAD * LANE, PRODUCT_N * LANE
"""Elements of a key, and of a value, that lanes load at once: four lanes share a key, eight a value."""
_AT_ONCE = 8
"""Parts of a sum that a thread reads before it adds them."""


@dataclass(frozen=True)
class AttentionDecodeTile:
    """A block's tiles: `rows` queries, and for each of its `warps` `keys` keys with their values at a time.

    parts: blocks that share out the keys; size: of a query and a key (D); width: of a value (E)
    """

    rows: int
    keys: int
    warps: int
    parts: int
    size: int
    width: int

    @staticmethod
    def of(choices: Choices, size: int, width: int) -> AttentionDecodeTile:
        """The tiles that a choice of knobs means."""
        rows, keys, warps, parts = (number(choices, name) for name in ("rows", "keys", "warps", "parts"))
        return AttentionDecodeTile(rows, keys, warps, parts, size, width)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps

    @property
    def halves(self) -> int:
        """Times eight rows."""
        return self.rows // PRODUCT_N

    @property
    def block_keys(self) -> int:
        """Keys that a block takes at once."""
        return self.keys * self.warps

    @property
    def key_chunks(self) -> int:
        """Loads of a lane for a query, and for each eight keys."""
        return ceil(self.size / _KEY_CHUNK)

    @property
    def value_chunks(self) -> int:
        """Loads of a lane for each value that it loads."""
        return ceil(self.width / _VALUE_CHUNK)

    @property
    def result(self) -> TileLayout:
        """The sums of a block, in f32."""
        return TileLayout(self.rows, self.width, 4)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block: results, largest scores and sums of each warp, and scores and sums of each
        part."""
        of_parts = 8 * self.parts * self.rows if self.parts > 1 else 0
        return self.warps * (self.result.bytes + 8 * self.rows) + of_parts

    @property
    def registers(self) -> int:
        """Registers of a thread that hold matrices: keys and values, its part of the result, queries and scores. Rows
        that a product has beside eight are registers, too."""
        loaded = self.keys // PRODUCT_N * 4 * self.key_chunks + self.keys // 4 * 4 * self.value_chunks
        return loaded + self.halves * 16 * self.value_chunks + 8 * self.key_chunks + self.keys // 2


@dataclass(frozen=True)
class _Sources:
    """What warps or blocks have of each row, relative to the largest of their own scores.

    number: of them; peaks, totals: largest scores and sums of weights, `[source, row]`; sum: of weighted values, given
    source, row and column
    """

    number: Index | int
    peaks: SSAValue
    totals: SSAValue
    sum: Callable[[Index, Index, Index], Scalar]


class AttentionDecodeKernel:
    """Writes the kernel of one attention: see `AttentionDecodeMma`.

    Lane `4 g + t` of a warp loads 16 bytes at a time: of key `8 j + g` the elements from `32 c + 8 t` on, of the values
    `16 p + 8 k + 2 t + e` those from `64 v + 8 g` on. Terms of a product may come in any order that is the same in both
    operands, so that these are fragments as they lie: of keys B, beside queries as A; of values A, transposed, beside
    weights as B, which lie as they were computed. The result is transposed, too: a lane has the elements
    `64 v + 8 g + 2 d + h` of rows `8 n + 2 t + c`.
    """

    def __init__(self, anchor: AttentionOp, tile: AttentionDecodeTile):
        self.anchor, self.tile = anchor, tile
        self.m, self.n = anchor.scores_shape[-2:]
        assert isinstance(anchor.k.type, TensorType)
        self.shared = anchor.k.type.get_shape()[:-2]
        self.total = self.m * anchor.group_size
        """Rows that share a head of keys and values: queries, and of each the heads of the group."""
        self.is_causal = bool(anchor.causal.value.data)
        self.element = anchor.type.get_element_type()
        self.of_a, self.of_b, self.of_c = fragments(self.element, self.element)
        self.b = kernel_builder(anchor.operands, anchor.type)
        for buffer, hint in zip(self.b.inputs, ("Q", "K", "V", "M"), strict=False):
            buffer.name_hint = hint

    def build(self, name: str) -> KernelOp:
        """The kernel; to be called once."""
        b, tile, anchor = self.b, self.tile, self.anchor
        heads, slabs = prod(self.shared), ceil(self.total / tile.rows)
        self.t = TileBuilder(b, tile.threads)
        self.line, self.quarter = self.t.lane // QUAD, self.t.lane % QUAD
        self.unit, self.part = b.block // tile.parts, b.block % tile.parts
        # Heads change fastest, so that a call of fewer queries has the first blocks.
        self.first_row = (self.unit // heads) * tile.rows if slabs > 1 else b.index(0)
        self.head = (self.unit % heads).delinearize(self.shared) if self.shared else []
        self.length, self.offset = key_range(b, anchor)
        self.visible = self._visible()
        self.tiles = (self.visible + (tile.block_keys - 1)) // tile.block_keys
        self.takes_steps = self.n > tile.parts * tile.block_keys
        """Whether a block may have keys of more than one step."""

        self._allocate()
        self._load_keys(b.index(0))
        self._load_values(b.index(0))
        self._load_queries()
        self.softmax = OnlineSoftmax(self.t, anchor, (1, tile.halves))
        if self.takes_steps:
            with b.loop("step", self._steps()) as step:
                self._step(step)
        else:
            with b.when(self.part < self.tiles if self._may_idle else None):
                self._step(b.index(0))
        self._finish(heads * slabs)
        each = f"softmax(Q[{self.total}, {tile.size}] * K[{self.n}, {tile.size}]^T) * V[{self.n}, {tile.width}]"
        comment = f"{heads} heads of keys: {each}"
        grid = heads * slabs * tile.parts
        return b.kernel(name, list(anchor.operands), anchor.type, grid, tile.threads, comment, 1)

    # Which rows and keys a block has.

    def _row(self, row: Index) -> Index:
        """One of the block's rows; the last one there is for rows beyond it."""
        row = self.first_row + row
        return row if self.total % self.tile.rows == 0 else row.min(self.total - 1)

    def _place(self, row: Index) -> tuple[list[Index], Index]:
        """The head and the query of one of the rows that share keys."""
        group = self.anchor.group_size
        query = row // group if self.m > 1 else self.b.index(0)
        return [*self.head[:-1], self.head[-1] * group + row % group] if self.head else [], query

    def _exists(self, row: Index) -> Predicate | None:
        """Whether one of the block's rows does."""
        return self.first_row + row < self.total if self.total % self.tile.rows else None

    def _visible(self) -> Index | int:
        """Keys that the block reads."""
        if not self.is_causal:
            return self.length
        if self.total <= self.tile.rows:
            seen = self.offset + self.m
        else:
            seen = self._place(self._row(self.b.index(self.tile.rows - 1)))[1] + 1 + self.offset
        if isinstance(seen, int):
            return min(max(seen, 0), self.length) if isinstance(self.length, int) else self.length.min(max(seen, 0))
        seen = seen.max(0) if may_see_none(self.offset) else seen
        return seen.min(self.length)

    @property
    def _rows_differ(self) -> bool:
        """Whether a row may see fewer keys than another one of its block."""
        return self.is_causal and self.m > 1

    @property
    def _may_idle(self) -> bool:
        """Whether a block may have no key."""
        return not isinstance(self.tiles, int) or self.tiles < self.tile.parts

    def _first_key(self, step: Index) -> Index:
        """The first key of the warp's tile: blocks that share keys take their tiles in turn, and so do warps."""
        tile = self.tile
        return ((step * tile.parts + self.part) * tile.warps + self.t.warp) * tile.keys

    def _steps(self) -> Index:
        """Tiles that the block takes."""
        tile = self.tile
        steps = self.b.index((self.tiles + (tile.parts - 1 - self.part)) // tile.parts)
        # How many there are at most is said for predictions.
        return steps if isinstance(self.tiles, int) else steps.min(ceil(self.n / tile.block_keys / tile.parts))

    # From memory to registers.

    def _allocate(self) -> None:
        b, tile = self.b, self.tile
        pairs = tile.keys // COLUMNS
        self.keys = b.alloc("keys", [tile.keys // PRODUCT_N, tile.key_chunks, LANE], self.element)
        self.values = b.alloc("values", [pairs, HALVES, 2, tile.value_chunks, LANE], self.element)
        self.acc = b.alloc("acc", [tile.value_chunks, LANE // 2, tile.halves], self.of_c)
        with b.tasks(["v", "d", "n"], repeat(tile.value_chunks, LANE // 2, tile.halves), unroll=True) as where:
            b.store(b.zeros(self.of_c), self.acc, where)

    def _load(self, region: Region, line: Index, column: Index, registers: SSAValue, place: Sequence[Index]) -> None:
        """16 bytes of a line."""
        b = self.b
        with b.tasks(["e"], repeat(LANE), unroll=True, vector=True) as (e,):
            b.store(region.load(line, column + e), registers, [*place, e])

    def _load_queries(self) -> None:
        """The block's rows, as operands A of all terms; with eight rows, the lower eight of a product are zeros."""
        b, tile = self.b, self.tile
        lines = b.alloc("lines", [tile.halves, tile.key_chunks, LANE], self.element)
        with b.tasks(["h", "c"], repeat(tile.halves, tile.key_chunks), unroll=True) as (h, c):
            head, query = self._place(self._row(self.line + h * PRODUCT_N))
            region = Region(b, b.inputs[0], head, (query, b.index(0)), (None, end_of(tile.size, _KEY_CHUNK)))
            self._load(region, b.index(0), c * _KEY_CHUNK + self.quarter * LANE, lines, [h, c])
        self.queries = b.alloc("queries", [tile.key_chunks, 2], self.of_a)
        with b.tasks(["c", "s"], repeat(tile.key_chunks, 2), unroll=True) as (c, s):
            rows = b.alloc("rows", self.of_a.get_shape(), self.element)
            if tile.halves < HALVES:
                with b.tasks(["k", "e"], repeat(HALVES, 2), unroll=True) as (k, e):
                    b.store(b.constant(0, self.element), rows, [k * HALVES + 1, e])
            with b.tasks(["k", "h", "e"], repeat(HALVES, tile.halves, 2), unroll=True) as (k, h, e):
                b.store(b.load(lines, [h, c, s * (LANE // 2) + k * 2 + e]), rows, [k * HALVES + h, e])
            b.store(b.load_vector(rows, self.of_a), self.queries, [c, s])

    def _load_keys(self, step: Index) -> None:
        """The keys of a step; those that the block does not see are not read."""
        b, tile = self.b, self.tile
        ends = self.visible, end_of(tile.size, _KEY_CHUNK)
        region = Region(b, b.inputs[1], self.head, (self._first_key(step), b.index(0)), ends)
        with b.tasks(["j", "c"], repeat(tile.keys // PRODUCT_N, tile.key_chunks), unroll=True) as (j, c):
            column = c * _KEY_CHUNK + self.quarter * LANE
            self._load(region, j * PRODUCT_N + self.line, column, self.keys, [j, c])

    def _load_values(self, step: Index) -> None:
        """The values of a step, in the same way."""
        b, tile = self.b, self.tile
        ends = self.visible, end_of(tile.width, _VALUE_CHUNK)
        region = Region(b, b.inputs[2], self.head, (self._first_key(step), b.index(0)), ends)
        each = repeat(tile.keys // COLUMNS, HALVES, 2, tile.value_chunks)
        with b.tasks(["p", "k", "e", "v"], each, unroll=True) as (p, k, e, v):
            line = p * COLUMNS + k * PRODUCT_N + (self.quarter * 2 + e)
            self._load(region, line, v * _VALUE_CHUNK + self.line * LANE, self.values, [p, k, e, v])

    # A step.

    def _step(self, step: Index) -> None:
        """Scores of the step's keys become weights of its values, which are added to the result. What a product has
        read is replaced by what the next step reads."""
        tile, first = self.tile, self._first_key(step)
        added = self._masked(first)
        products = self.t.fragment("products", f32, (PRODUCT_M, tile.keys))
        self._multiply_keys(products)
        if self.takes_steps:
            self._load_keys(step + 1)
        scores = self.softmax.scores(products, added)
        self._hide(first, products, scores)
        self._scale_columns(self.softmax.weigh(products, scores))
        self._multiply_values(scores)
        if self.takes_steps:
            self._load_values(step + 1)

    def _multiply_keys(self, products: Fragment) -> None:
        b, tile = self.b, self.tile
        with (
            b.tasks(["c", "s"], repeat(tile.key_chunks, 2), unroll=True) as (c, s),
            b.tasks(["p", "q"], repeat(tile.keys // COLUMNS, PAIR), unroll=True) as (p, q),
        ):
            right = b.alloc("right", self.of_b.get_shape(), self.element)
            with b.tasks(["k", "e"], repeat(HALVES, 2), unroll=True) as (k, e):
                b.store(b.load(self.keys, [p * PAIR + q, c, s * (LANE // 2) + k * 2 + e]), right, [k, e])
            sums = b.load(products.registers, [0, p, q])
            b.store(
                b.mma(b.load(self.queries, [c, s]), b.load_vector(right, self.of_b), sums),
                products.registers,
                [0, p, q],
            )

    def _multiply_values(self, weights: SSAValue) -> None:
        """Adds the products of the step's values, transposed, and its weights, which are rounded."""
        b, tile = self.b, self.tile
        pairs = tile.keys // COLUMNS
        rights = b.alloc("rights", [pairs, tile.halves], self.of_b)
        with b.tasks(["p", "n"], repeat(pairs, tile.halves), unroll=True) as (p, n):
            right = b.alloc("right", self.of_b.get_shape(), self.element)
            with b.tasks(["q", "c"], repeat(PAIR, 2), unroll=True) as (q, c):
                b.store(narrowed(b, b.load(weights, [0, p, q, n, c]), self.element), right, [q, c])
            b.store(b.load_vector(right, self.of_b), rights, [p, n])
        each = repeat(pairs, tile.value_chunks, LANE // 2)
        with b.tasks(["p", "v", "d"], each, unroll=True) as (p, v, d):
            left = b.alloc("left", self.of_a.get_shape(), self.element)
            with b.tasks(["k", "h", "e"], repeat(HALVES, HALVES, 2), unroll=True) as (k, h, e):
                b.store(b.load(self.values, [p, k, e, v, d * 2 + h]), left, [k * HALVES + h, e])
            with b.tasks(["n"], repeat(tile.halves), unroll=True) as (n,):
                sums = b.load(self.acc, [v, d, n])
                b.store(b.mma(b.load_vector(left, self.of_a), b.load(rights, [p, n]), sums), self.acc, [v, d, n])

    def _scale_columns(self, factors: SSAValue) -> None:
        """Multiplies results by the factors of rows `8 n + g`, which other lanes have."""
        b, tile = self.b, self.tile
        own = b.alloc("own", [tile.halves, 2], f32)
        with b.tasks(["n", "c"], repeat(tile.halves, 2), unroll=True) as (n, c):
            lane = (self.quarter * 2 + c) * QUAD
            b.store(b.insert(ShuffleOp(b.load(factors, [0, n]), lane.value)), own, [n, c])
        with b.tasks(["v", "d", "n"], repeat(tile.value_chunks, LANE // 2, tile.halves), unroll=True) as (v, d, n):
            elements = b.alloc("elements", self.of_c.get_shape(), f32)
            with b.tasks(["h", "c"], repeat(HALVES, 2), unroll=True) as (h, c):
                value = b.extract(b.load(self.acc, [v, d, n]), [h, c], f32)
                b.store(b.mul(value, b.load(own, [n, c])), elements, [h, c])
            b.store(b.load_vector(elements, self.of_c), self.acc, [v, d, n])

    def _masked(self, first_key: Index) -> SSAValue | None:
        """The mask's elements for the lane's scores, asked for before the products."""
        b, tile = self.b, self.tile
        if self.anchor.mask is None:
            return None
        type = self.anchor.mask.type
        assert isinstance(type, TensorType)
        extents = [1, tile.keys // COLUMNS, PAIR, tile.halves, 2]
        added = b.alloc("added", extents, type.get_element_type())
        with b.tasks(["p", "q", "h"], repeat(*extents[1:-1]), unroll=True) as (p, q, h):
            head, query = self._place(self._row(self.line + h * PRODUCT_N))
            with b.loop("c", 2, unroll=True, vector=True) as c:
                column = first_key + (p * COLUMNS + q * PRODUCT_N + (self.quarter * 2 + c))
                value = mask_element(b, self.anchor, head, query, column, (None, self.visible))
                b.store(value, added, [0, p, q, h, c])
        return added

    def _hide(self, first_key: Index, products: Fragment, scores: SSAValue) -> None:
        """Makes scores of keys that a row does not see -inf, in the tiles in which there are any."""
        b, tile = self.b, self.tile
        if isinstance(self.length, int) and not self.is_causal and end_of(self.length, tile.block_keys) is None:
            return
        seen = self.visible
        if self._rows_differ:
            seen = (self._place(self._row(b.index(0)))[1] + 1 + self.offset).min(self.length)
        with (
            b.when(first_key + tile.keys > seen),
            b.tasks(["h"], repeat(tile.halves), unroll=True) as (h,),
        ):
            end = b.index(self.visible)
            if self._rows_differ:
                _, query = self._place(self._row(self.line + h * PRODUCT_N))
                end = (query + 1 + self.offset).min(self.length)
            # What lanes differ in is on one side, so that the other side of all comparisons is a constant.
            limit = end - (first_key + products.lane_column)
            with b.tasks(["p", "q", "c"], repeat(tile.keys // COLUMNS, PAIR, 2), unroll=True) as (p, q, c):
                indices = [b.index(0), p, q, h, c]
                is_seen = p * COLUMNS + q * PRODUCT_N + c < limit
                b.store(b.select(is_seen, b.load(scores, indices), b.constant(-inf, f32)), scores, indices)

    # The sums of warps and of blocks.

    def _finish(self, units: int) -> None:
        """Adds up the results of the warps, scaled down to the largest score of all, and those of the blocks that share
        the keys in the last one to arrive, always in the same order."""
        b, tile = self.b, self.tile
        of_warps = self._of_warps()
        if tile.parts == 1:
            with self._chunks() as (row, column):
                self._write(row, column, *self._combined(of_warps, row, column)[:2])
            return
        shape = [units, tile.parts, tile.rows]
        peaks, totals = (b.alloc(f"part_{name}", shape, f32, Space.DEVICE) for name in ("peaks", "totals"))
        sums = b.alloc("part_sums", [*shape, tile.width], f32, Space.DEVICE)
        with b.when(self.part < self.tiles if self._may_idle else None), self._chunks() as (row, column):
            found, total, peak = self._combined(of_warps, row, column)
            place = [self.unit, self.part, row]
            with b.tasks(["e"], repeat(tile.result.chunk), unroll=True, vector=True) as (e,):
                b.store(b.load(found, [e]), sums, [*place, column + e])
            with b.when(column.equals(0)):
                b.store(peak, peaks, place)
                b.store(total, totals, place)
        last = b.arrive(b.alloc("counters", [units], i32, Space.ZEROED), self.unit, tile.parts)
        last.name_hint = "last"
        with b.when(last):
            of_blocks = self._of_blocks(peaks, totals, sums)
            with self._chunks() as (row, column):
                self._write(row, column, *self._combined(of_blocks, row, column)[:2])

    @contextmanager
    def _chunks(self) -> Generator[tuple[Index, Index]]:
        """A loop over the thread's chunks of the rows that exist: row of the block, first column."""
        with (
            self.t.chunks(self.tile.result, self.b.thread, self.tile.threads) as (row, column),
            self.b.when(self._exists(row)),
        ):
            yield row, column

    def _of_warps(self) -> _Sources:
        """What every warp has, in shared memory."""
        b, tile, layout = self.b, self.tile, self.tile.result
        peaks, totals = (b.alloc(name, [tile.warps, tile.rows], f32, Space.SHARED) for name in ("peaks", "totals"))
        sums = b.alloc("sums", [tile.warps, tile.rows, tile.width], f32, Space.SHARED, layout.swizzle)
        with b.tasks(["h"], repeat(tile.halves), unroll=True) as (h,):
            total = b.fold_lanes("add", b.load(self.softmax.total, [0, h]), QUAD)
            with b.when(self.quarter.equals(0)):
                place = [self.t.warp, self.line + h * PRODUCT_N]
                b.store(b.load(self.softmax.largest, [0, h]), peaks, place)
                b.store(total, totals, place)
        each = repeat(tile.value_chunks, tile.halves, 2, LANE // layout.chunk)
        is_odd = (self.line % 2).equals(1)
        with b.tasks(["v", "n", "c", "k"], each, unroll=True) as (v, n, c, k):
            row, column = n * PRODUCT_N + (self.quarter * 2 + c), v * _VALUE_CHUNK + self.line * LANE
            # Every other eight lanes have their chunks in the other order, so that they meet in no bank.
            chunk = column + ((self.line + k) % 2) * layout.chunk

            def element(half: Index, e: Index) -> Scalar:
                found = b.load(self.acc, [v, half * (layout.chunk // 2) + e // 2, n])
                return b.extract(found, [e % 2, c], f32)

            with (
                b.when(column < tile.width if tile.width % _VALUE_CHUNK else None),
                b.tasks(["e"], repeat(layout.chunk), unroll=True, vector=True) as (e,),
            ):
                value = b.select(is_odd, element(1 - k, e), element(k, e))
                b.store(value, sums, [self.t.warp, row, chunk + e])
        b.barrier()
        return _Sources(tile.warps, peaks, totals, lambda warp, row, column: b.load(sums, [warp, row, column]))

    def _of_blocks(self, part_peaks: SSAValue, part_totals: SSAValue, part_sums: SSAValue) -> _Sources:
        """What every block has that had keys: largest scores and sums of weights in shared memory."""
        b, tile = self.b, self.tile
        active = b.index(self.tiles).min(tile.parts) if self._may_idle else tile.parts
        shape, at_once = [tile.parts, tile.rows], tile.threads // tile.rows
        peaks, totals = (b.alloc(f"all_{name}", shape, f32, Space.SHARED) for name in ("peaks", "totals"))
        each = repeat(ceil(tile.parts / at_once), 1) * spatial(at_once, tile.rows)
        with b.tasks(["part", "row"], each, b.thread) as (part, row):
            is_active = part < active if self._may_idle or tile.parts % at_once else None
            with b.when(all_of([is_active, self._exists(row)])):
                b.store(b.load(part_peaks, [self.unit, part, row]), peaks, [part, row])
                b.store(b.load(part_totals, [self.unit, part, row]), totals, [part, row])
        b.barrier()
        return _Sources(
            active, peaks, totals, lambda part, row, column: b.load(part_sums, [self.unit, part, row, column])
        )

    def _combined(self, sources: _Sources, row: Index, column: Index) -> tuple[SSAValue, Scalar, Scalar]:
        """A chunk of a row of the result in registers, the sum of the row's weights, and its largest score."""
        b, softmax, chunk = self.b, self.softmax, self.tile.result.chunk
        peak = b.fold(
            "s", sources.number, b.constant(-inf, f32),
            lambda s, most: b.binary("max", most, b.load(sources.peaks, [s, row])), at_once=_AT_ONCE,
        )  # fmt: skip
        base = softmax.base(peak)
        total, found = b.alloc("all", [1], f32), b.alloc("found", [chunk], f32)
        b.store(b.constant(0, f32), total, [0])
        with b.tasks(["e"], repeat(chunk), unroll=True) as (e,):
            b.store(b.constant(0, f32), found, [e])
        with b.loop("s", sources.number, at_once=_AT_ONCE) as s:
            factor = softmax.weight(b.load(sources.peaks, [s, row]), base)
            b.store(b.add(b.load(total, [0]), b.mul(factor, b.load(sources.totals, [s, row]))), total, [0])
            with b.tasks(["e"], repeat(chunk), unroll=True, vector=True) as (e,):
                b.store(b.add(b.load(found, [e]), b.mul(factor, sources.sum(s, row, column + e))), found, [e])
        return found, b.load(total, [0]), peak

    def _write(self, row: Index, column: Index, sums: SSAValue, total: Scalar) -> None:
        """A chunk of a row of the result, divided by the sum of its weights."""
        b = self.b
        head, query = self._place(self.first_row + row)
        share = share_of_keys(b, self.length, b.binary("div", b.constant(1, f32), total))
        # The largest score weighs 1, if there is one: a sum that is not positive belongs to a row without scores.
        counts = b.binary("gt", total, b.constant(0, f32)) if self.anchor.guard.value.data else None
        with b.tasks(["e"], repeat(self.tile.result.chunk), unroll=True, vector=True) as (e,):
            value = b.mul(b.load(sums, [e]), share)
            if counts is not None:
                value = b.select(counts, value, b.constant(0, f32))
            b.store(narrowed(b, value, self.element), b.output, [*head, query, column + e])
