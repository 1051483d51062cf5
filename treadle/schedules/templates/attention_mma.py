"""Attention on tensor cores: scores and weights never leave the registers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil, inf, prod
from typing import ClassVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, BFloat16Type, Float16Type, TensorType, f32
from xdsl.ir import SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, kernel_builder, narrowed
from treadle.schedules.pipelines import pipelined
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limit, check_limits
from treadle.schedules.templates.attention_mma_tile import AttentionMmaTile, OnlineSoftmax
from treadle.schedules.templates.attention_tile import (
    blocks_of,
    mask_element,
    mask_varies,
    share_of_keys,
    work_tile,
)
from treadle.schedules.tiles import (
    COLUMNS,
    HALVES,
    PAIR,
    PRODUCT_M,
    PRODUCT_N,
    QUAD,
    Extent,
    Fragment,
    Region,
    SharedTile,
    TileBuilder,
    TileLayout,
    end_of,
)
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

    def obstacle(self, anchor: Anchor, target: Target) -> str | None:
        if not isinstance(anchor, AttentionOp) or self.fits(anchor) or not self.runs_on(target):
            return None
        if not isinstance(anchor.type.get_element_type(), Float16Type | BFloat16Type):
            return f"its elements are {anchor.type.get_element_type()}: --precision f16 lets tensor cores multiply them"
        return f"heads of more than {_LARGEST_SIZE} elements, or no room for their tiles on some GPU"

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
            COLUMNS,
            tile.own_columns,
            message=f"attention_mma: {tile.columns} keys in {tile.parts} parts are {tile.own_columns} each, "
            f"{COLUMNS - tile.own_columns} too few",
            accepted=f"at least {COLUMNS} keys a warp",
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
    return min(wanted, columns // COLUMNS, _MOST_THREADS // WARP // warps)


# The kernel of attention on tensor cores, written for given tiles.


class AttentionMmaKernel:
    """Writes the kernel of one attention: see `AttentionMma`."""

    def __init__(self, anchor: AttentionOp, tile: AttentionMmaTile):
        self.anchor, self.tile = anchor, tile
        self.m, self.n = anchor.scores_shape[-2:]
        self.element = anchor.type.get_element_type()
        self.b = kernel_builder(anchor.operands, anchor.type)
        for buffer, hint in zip(self.b.inputs, ("Q", "K", "V", "M"), strict=False):
            buffer.name_hint = hint

    def build(self, name: str) -> KernelOp:
        """The kernel; to be called once."""
        b, tile, element = self.b, self.tile, self.element
        self.work = work_tile(b, self.anchor, tile.rows, tile.columns, heads_first=True)
        t = self.t = TileBuilder(b, tile.threads)
        part, self.row = t.warp // tile.warps, (t.warp % tile.warps) * tile.warp_rows
        self.first_key = part * tile.own_columns
        # Queries share a buffer with the result, which replaces them.
        lines = t.shared("lines", max(tile.queries, tile.result, key=lambda layout: layout.columns), element)
        self.queries, result = replace(lines, layout=tile.queries), replace(lines, layout=tile.result)
        self.keys = t.shared("keys", tile.keys, element, tile.stages)
        self.values = t.shared("values", tile.values, element, tile.stages)
        self.acc = t.fragment("acc", f32, (tile.warp_rows, tile.padded_width), (self.row, 0))
        self.softmax = OnlineSoftmax(t, self.anchor, (tile.slabs, HALVES))

        t.copy(self._lines(b.inputs[0], self.work.first_row, self.m, tile.queries, tile.size), self.queries)
        b.commit()
        pipelined(b, "step", self.work.tiles, tile.stages, self._start, self._step, self._load_queries)
        if tile.parts > 1:
            self.softmax.merge(self.acc, part, tile.parts, WARP * tile.warps)
        b.barrier()
        with b.when(part.equals(0) if tile.parts > 1 else None):
            self._finish(result)
        b.barrier()
        t.copy_back(result, self._lines(b.output, self.work.first_row, self.m, tile.result, tile.width))
        heads, size, width = prod(self.anchor.shape[:-2]), tile.size, tile.width
        comment = f"{heads} heads: softmax(Q[{self.m}, {size}] * K[{self.n}, {size}]^T) * V[{self.n}, {width}]"
        grid = blocks_of(self.anchor, tile.rows)
        return b.kernel(name, list(self.anchor.operands), self.anchor.type, grid, tile.threads, comment, 1)

    def _lines(self, buffer: SSAValue, first: Index, total: Extent, layout: TileLayout, size: int) -> Region:
        """Lines of a head: of queries and the result, or of keys and values."""
        head = self.work.shared_head if buffer in self.b.inputs[1:3] else self.work.head
        covered = layout.rows, layout.columns
        return Region.of(self.b, buffer, (first, self.b.index(0)), (total, size), covered, head)

    def _start(self, step: Index, stage: Index) -> None:
        """The copies of a step's keys and values."""
        (_, key, value, *_), tile, first = self.b.inputs, self.tile, step * self.tile.columns
        self.t.copy(self._lines(key, first, self.work.length, tile.keys, tile.size), self.keys[stage])
        self.t.copy(self._lines(value, first, self.work.length, tile.values, tile.width), self.values[stage])

    def _load_queries(self) -> None:
        self.left = self.t.operand("query_fragments", self.queries, self.tile.warp_rows, self.row)

    def _step(self, step: Index, stage: Index) -> None:
        """Scores of the step's keys become weights of its values, which are added to the result."""
        t, tile, first = self.t, self.tile, step * self.tile.columns + self.first_key
        added = self._masked(first)
        products = t.fragment("products", f32, (tile.warp_rows, tile.own_columns), (self.row, self.first_key))
        t.gemm(self.left, self.keys[stage], products)
        scores = self.softmax.scores(products, added)
        self._hide(step, first, products, scores)
        self.acc.scale_rows(self.softmax.weigh(products, scores))
        weights = t.as_operand(t.elements(scores), products, self.element)
        t.gemm(weights, self.values[stage], self.acc, tile.own_columns, self.first_key)

    def _masked(self, first_key: Index) -> SSAValue | None:
        """The mask's elements for the lane's scores, in registers: asked for before the products, so that they are
        there after them."""
        b, tile = self.b, self.tile
        if self.anchor.mask is None:
            return None
        type = self.anchor.mask.type
        assert isinstance(type, TensorType)
        extents = [tile.slabs, tile.own_columns // COLUMNS, PAIR, HALVES, 2]
        added = b.alloc("added", extents, type.get_element_type())
        ends = end_of(self.m, tile.rows), end_of(self.work.length, tile.columns)
        with b.tasks(["r", "p", "q", "h"], repeat(*extents[:-1]), unroll=True) as (r, p, q, h):
            row = self.work.first_row + self.acc.row(r, h)
            with b.loop("c", 2, unroll=True, vector=True) as c:
                column = first_key + self.acc.column(p, q, c)
                value = mask_element(b, self.anchor, self.work.head, row, column, ends)
                b.store(value, added, [r, p, q, h, c])
        return added

    def _hide(self, step: Index, first_key: Index, products: Fragment, scores: SSAValue) -> None:
        """Makes scores of keys that a row does not see -inf, in the tiles in which there are any."""
        b, tile, length = self.b, self.tile, self.work.length
        is_ragged, is_causal = end_of(length, tile.columns) is not None, bool(self.anchor.causal.value.data)
        if not is_ragged and not is_causal:
            return
        reach = self.work.first_row + self.work.offset
        needed = first_key + (tile.own_columns - 1) > reach + self.row if is_causal else None
        if is_ragged:
            static = isinstance(length, int)
            last = step.equals(self.work.most_tiles - 1) if static else first_key + tile.own_columns > length
            needed = last if needed is None else needed | last
        with b.when(needed), b.tasks(["r", "h"], repeat(tile.slabs, HALVES), unroll=True) as (r, h):
            last_seen = reach + products.row(r, h) if is_causal else b.index(length - 1)
            last_seen = last_seen.min(length - 1) if is_causal and is_ragged else last_seen
            # What lanes differ in is on one side, so that the other side of all comparisons is a constant.
            limit = last_seen - (first_key + products.lane_column)
            with b.tasks(["p", "q", "c"], repeat(tile.own_columns // COLUMNS, PAIR, 2), unroll=True) as (p, q, c):
                indices = [r, p, q, h, c]
                visible = p * COLUMNS + q * PRODUCT_N + c <= limit
                b.store(b.select(visible, b.load(scores, indices), b.constant(-inf, f32)), scores, indices)

    def _finish(self, result: SharedTile) -> None:
        """The warp's rows of the result, divided by the sums and rounded, into the buffer of its queries."""
        b, acc = self.b, self.acc
        with b.tasks(["r", "h"], repeat(self.tile.slabs, HALVES), unroll=True) as (r, h):
            total = b.fold_lanes("add", b.load(self.softmax.total, [r, h]), QUAD)
            share = share_of_keys(b, self.work.length, b.binary("div", b.constant(1, f32), total))
            # The largest score weighs 1, if there is one: a sum that is not positive belongs to a row without scores.
            counts = b.binary("gt", total, b.constant(0, f32)) if self.anchor.guard.value.data else None
            with (
                b.tasks(["p", "q"], repeat(*acc.shape[1:]), unroll=True) as (p, q),
                b.loop("c", 2, unroll=True, vector=True) as c,
            ):
                value = b.mul(acc.load(r, p, q, h, c), share)
                if counts is not None:
                    value = b.select(counts, value, b.constant(0, f32))
                b.store(narrowed(b, value, self.element), result.buffer, [acc.row(r, h), acc.column(p, q, c)])
