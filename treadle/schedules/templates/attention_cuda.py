"""Attention on CUDA cores: scores and weights never leave the multiprocessor."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import ClassVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, BFloat16Type, Float16Type, Float32Type, TensorType, f32
from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.definition import widened
from treadle.dialects.graph.elementwise import convert
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, all_of, kernel_builder, narrowed
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limit, check_limits
from treadle.schedules.templates.attention_tile import (
    AttentionTile,
    blocks_of,
    mask_element,
    share_of_keys,
    work_tile,
)
from treadle.schedules.tiles import end_of
from treadle.target import GPUS, KIB, Target

_ROOMY = tuple(target for target in GPUS if target.shared_per_block > 64 * KIB)
"""Which all have room for what fits; `has_default` says whether another one has."""
_ROWS = (4, 8, 16, 32, 64)
_COLUMNS = (16, 32, 64)
_THREADS = {8: 128, 16: 128, 32: 128, 64: 256}
"""Threads of a default block with so many rows. Fewer would fetch no faster."""
_LANES = 16
"""Threads that share a row by default: 64 elements of a value are a vector of each."""
_MODEST = 16
"""Rows of a default block where more of them leave multiprocessors idle."""


class AttentionCuda(Template):
    """A block computes `rows` rows of one head. Tiles of `columns` keys and values pass through shared memory, the
    next one is prefetched into registers meanwhile. Threads keep for their rows the largest score so far, the sum of
    the weights relative to it, and the result so far, all of which are scaled down when a larger score appears.

    Every size is covered: what is fetched beyond the end is 0, keys beyond the end weigh nothing, rows beyond the end
    are not stored. Tiles of keys that causality hides from all rows of a block are skipped; a hidden value that is
    not finite makes rows NaN only where its tile is not skipped. All arithmetic is in f32.

    Source: Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", NeurIPS 2022,
    algorithm 1, with the loop over queries outside; Milakov and Gimelshein (arXiv 1805.02867), algorithm 3, for the
    running sum.
    """

    name: ClassVar[str] = "attention_cuda"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("rows", _ROWS, "queries of a block"),
        Knob("columns", _COLUMNS, "keys and values in shared memory at a time"),
        Knob("threads", (32, 64, 128, 256), "threads of a block"),
        Knob("lanes", (8, 16, 32), "neighbouring threads that share a row"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, AttentionOp) or DYNAMIC_INDEX in (*anchor.scores_shape, *anchor.shape):
            return False
        element = anchor.type.get_element_type()
        if not isinstance(element, Float32Type | Float16Type | BFloat16Type) or not prod(_extents(anchor)):
            return False
        return all(_default(anchor, target) is not None for target in _ROOMY)

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
        check_limit(
            "rows at once",
            tile.strips,
            tile.rows,
            message=f"attention_cuda: {tile.threads} threads, {tile.lanes} a row, take {tile.strips} rows at once, "
            f"{tile.strips - tile.rows} too many",
            accepted=f"at most the {tile.rows} rows of the block",
        )
        missing = tile.lanes - tile.columns
        check_limit(
            "keys that the lanes of a row need",
            tile.lanes,
            tile.columns,
            message=f"attention_cuda: {tile.columns} keys for {tile.lanes} lanes are {missing} too few",
            accepted="at least one key a lane",
        )
        who = (
            f"attention_cuda with {tile.rows} queries of {tile.size} elements and {tile.columns} values of {tile.width}"
        )
        check_limits(who, _usage(tile, target), target)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        return AttentionKernel(anchor, _tile(anchor, choices)).build(name)


def _usage(tile: AttentionTile, target: Target) -> tuple[tuple[str, int, int], ...]:
    """What a tile takes of the resources that bound it, and how much there is."""
    return (
        ("bytes of shared memory", tile.shared_bytes, target.shared_per_block),
        ("registers a thread", tile.registers, target.registers_per_thread),
    )


def _extents(anchor: AttentionOp) -> tuple[int, ...]:
    """Every extent of the operator: batch, heads, queries and keys, the sizes of queries and values."""
    assert isinstance(anchor.q.type, TensorType)
    return (*anchor.scores_shape, anchor.q.type.get_shape()[-1], anchor.shape[-1])


def _tile(anchor: AttentionOp, choices: Choices) -> AttentionTile:
    return AttentionTile.of(choices, *_extents(anchor)[-2:])


def _default(anchor: AttentionOp, target: Target) -> dict[str, Choice] | None:
    """The most rows of which three quarters of the multiprocessors get a block, and 64 keys, or as many as there are;
    fewer of them, then of the rows, while the target has no room. None where it has none for the smallest tile."""
    *batch, m, n, _, _ = _extents(anchor)
    heads = prod(batch)
    columns = next((c for c in _COLUMNS if c >= n), _COLUMNS[-1])
    needed = next((r for r in _THREADS if r >= m), _ROWS[-1])
    many = (r for r in reversed(_ROWS) if 4 * heads * ceil(m / r) >= 3 * target.multiprocessors)
    rows = min(needed, max(_MODEST, next(many, _MODEST)))
    while True:
        choices: dict[str, Choice] = {"rows": rows, "columns": columns, "threads": _THREADS[rows], "lanes": _LANES}
        if all(used <= limit for _, used, limit in _usage(_tile(anchor, choices), target)):
            return choices
        if columns > _COLUMNS[0]:
            columns //= 2
        elif rows > min(_THREADS):
            rows //= 2
        else:
            return None


# The kernel of attention on CUDA cores, written for given tiles.

_VECTOR = 4
"""Elements that a thread reads of shared memory at once."""


@dataclass(frozen=True, eq=False)
class _Operand:
    """Queries, keys or values, and how a tile of them gets into shared memory.

    total: lines of a head; lines, extent: of the tile in shared memory; size: elements of a line that there are;
    vector: fetched at once
    """

    buffer: SSAValue
    head: Sequence[Index]
    total: Index | int
    size: int
    lines: int
    extent: int
    vector: int
    shared: SSAValue


class AttentionKernel:
    """Writes the kernel of one attention: see `AttentionCuda`."""

    def __init__(self, anchor: AttentionOp, tile: AttentionTile):
        self.anchor, self.tile = anchor, tile
        self.m, self.n = anchor.scores_shape[-2:]
        self.element = anchor.type.get_element_type()
        self.b = kernel_builder(anchor.operands, anchor.type)
        for buffer, hint in zip(self.b.inputs, ("Q", "K", "V", "M"), strict=False):
            buffer.name_hint = hint

    def build(self, name: str) -> KernelOp:
        """The kernel."""
        b, tile = self.b, self.tile
        self._split_work()
        self.queries, self.keys, self.values = self._operands()
        self.weights = b.alloc("weights", [tile.rows, tile.weight_stride], f32, Space.SHARED)
        self.acc = self._registers("acc", tile.rows_each * tile.vectors * tile.vector, 0)
        self.largest = self._registers("largest", tile.rows_each, -inf)
        self.total = self._registers("total", tile.rows_each, 0)
        with self._shares(self.queries) as (line, column, _):
            value = self._fetched(self.queries, self.first_row, line, column)
            b.store(widened(b, value), self.queries.shared, [line, column])
        self._pipeline()
        self._store()
        heads, head_size, width = prod(self.anchor.shape[:-2]), tile.size, tile.width
        comment = (
            f"{heads} heads: softmax(Q[{self.m}, {head_size}] * K[{self.n}, {head_size}]^T) * V[{self.n}, {width}]"
        )
        grid = blocks_of(self.anchor, tile.rows)
        return b.kernel(name, list(self.anchor.operands), self.anchor.type, grid, tile.threads, comment, 1)

    def _split_work(self) -> None:
        """The block's work tile, the thread's strip and lane."""
        b, tile = self.b, self.tile
        work = work_tile(b, self.anchor, tile.rows, tile.columns, heads_first=True)
        self.first_row, self.head, self.shared_head = work.first_row, work.head, work.shared_head
        self.tiles, self.most_tiles = work.tiles, work.most_tiles
        self.length, self.offset = work.length, work.offset
        self.strip, self.lane = b.thread // tile.lanes, b.thread % tile.lanes

    def _operands(self) -> tuple[_Operand, _Operand, _Operand]:
        b, tile = self.b, self.tile
        q, k, v, *_ = b.inputs
        by_size, by_width = (
            (tile.size, tile.padded_size, tile.size_vector),
            (tile.width, tile.padded_width, tile.width_vector),
        )

        def operand(
            name: str, buffer: SSAValue, head: Sequence[Index], total: Index | int, lines: int, sizes: tuple[int, ...]
        ) -> _Operand:
            size, extent, vector = sizes
            stride, swizzle = (tile.key_stride, tile.key_swizzle) if sizes is by_size else (extent, None)
            shared = b.alloc(name, [lines, stride], f32, Space.SHARED, swizzle)
            return _Operand(buffer, head, total, size, lines, extent, vector, shared)

        return (
            operand("queries", q, self.head, self.m, tile.rows, by_size),
            operand("keys", k, self.shared_head, self.length, tile.columns, by_size),
            operand("values", v, self.shared_head, self.length, tile.columns, by_width),
        )

    def _registers(self, name: str, count: int, initial: float | None = None, type: Attribute = f32) -> SSAValue:
        """A register buffer, filled with `initial` if that is given."""
        b = self.b
        buffer = b.alloc(name, [count], type)
        if initial is not None:
            with b.tasks(["e"], repeat(count), unroll=True) as (e,):
                b.store(b.constant(initial, type), buffer, [e])
        return buffer

    @contextmanager
    def _shares(self, operand: _Operand) -> Generator[tuple[Index, Index, Index]]:
        """A loop over the thread's elements of an operand's tile: line, column, ordinal."""
        b, vector, threads = self.b, operand.vector, self.tile.threads
        each = operand.extent // vector
        vectors = operand.lines * each
        with b.loop("u", ceil(vectors / threads), unroll=True) as u:
            position = u * threads + b.thread
            inside = position < vectors if vectors % threads else None
            with b.when(inside), b.loop("e", vector, unroll=True) as e:
                column = (position % each) * vector + e
                yield position // each, column, u * vector + e

    def _fetched(self, operand: _Operand, first: Index, line: Index, column: Index) -> SSAValue:
        """An element of the tile that begins with line `first`, 0 beyond the end."""
        b, index = self.b, first + line
        inside = [index < operand.total] if end_of(operand.total, operand.lines) is not None else []
        inside += [column < operand.size] if operand.size < operand.extent else []
        indices = [*operand.head, index, column]
        if not inside:
            return b.load(operand.buffer, indices)
        return b.load(operand.buffer, indices, all_of(inside), b.constant(0, self.element))

    def _fetch(self, operand: _Operand, step: Index, registers: SSAValue) -> None:
        """Global memory to registers."""
        first = step * operand.lines
        with self._shares(operand) as (line, column, ordinal):
            self.b.store(self._fetched(operand, first, line, column), registers, [ordinal])

    def _keep(self, operand: _Operand, registers: SSAValue) -> None:
        """Registers to shared memory."""
        b = self.b
        with self._shares(operand) as (line, column, ordinal):
            b.store(widened(b, b.load(registers, [ordinal])), operand.shared, [line, column])

    def _pipeline(self) -> None:
        """The loop over tiles of keys and values. Of the two barriers of a step, the first lies between the last use
        of the keys and the next ones, and between writing weights and reading them; the second does that for values."""
        b, tile = self.b, self.tile
        fetched = {
            operand: self._registers(
                name, tile.fetched(operand.lines, operand.extent, operand.vector), type=self.element
            )
            for name, operand in (("next_keys", self.keys), ("next_values", self.values))
        }
        for operand, registers in fetched.items():
            self._fetch(operand, b.index(0), registers)
        for operand, registers in fetched.items():
            self._keep(operand, registers)
        b.barrier()
        with b.loop("step", self.tiles) as step:
            following = step + 1
            more = following < self.tiles
            several = self.most_tiles > 1
            if several:
                with b.when(more):
                    for operand, registers in fetched.items():
                        self._fetch(operand, following, registers)
            self._weigh(step)
            b.barrier()
            if several:
                with b.when(more):
                    self._keep(self.keys, fetched[self.keys])
            self._accumulate()
            if several:
                b.barrier()
                with b.when(more):
                    self._keep(self.values, fetched[self.values])

    def _row(self, i: Index) -> Index:
        """The thread's i-th row of the tile."""
        return i * self.tile.strips + self.strip

    def _column(self, j: Index) -> Index:
        """The thread's j-th key of the tile."""
        return j * self.tile.lanes + self.lane

    def _weigh(self, step: Index) -> None:
        """Scores of the thread's rows and keys, and the weights that they give, relative to the largest so far."""
        b, tile = self.b, self.tile
        added = self._masked(step)
        scores = self._registers("scores", tile.rows_each * tile.columns_each, 0)
        self._multiply(scores)
        with b.tasks(["i"], repeat(tile.rows_each), unroll=True) as (i,):
            peak = b.alloc("peak", [1], f32)
            old = b.load(self.largest, [i])
            b.store(old, peak, [0])
            with b.tasks(["j"], repeat(tile.columns_each), unroll=True) as (j,):
                position = i * tile.columns_each + j
                score = self._score(b.load(scores, [position]), step, i, j, added)
                b.store(score, scores, [position])
                b.store(b.binary("max", b.load(peak, [0]), score), peak, [0])
            new = b.fold_lanes("max", b.load(peak, [0]), tile.lanes)
            b.store(new, self.largest, [i])
            # Before the first visible key, -inf - -inf would be NaN, and stay it.
            base = b.select(b.binary("eq", new, b.constant(-inf, f32)), b.constant(0, f32), new)
            shrink = b.math("exp", b.binary("sub", old, base))
            b.store(b.mul(b.load(self.total, [i]), shrink), self.total, [i])
            with b.tasks(["j"], repeat(tile.columns_each), unroll=True) as (j,):
                score = b.load(scores, [i * tile.columns_each + j])
                weight = b.math("exp", b.binary("sub", score, base))
                b.store(b.add(b.load(self.total, [i]), weight), self.total, [i])
                b.store(weight, self.weights, [self._row(i), self._column(j)])
            outputs = tile.vectors * tile.vector
            with b.tasks(["e"], repeat(outputs), unroll=True) as (e,):
                position = i * outputs + e
                b.store(b.mul(b.load(self.acc, [position]), shrink), self.acc, [position])

    def _masked(self, step: Index) -> SSAValue | None:
        """The mask's elements for the thread's rows and keys, in registers: asked for before the product, so that
        they are there after it."""
        b, tile = self.b, self.tile
        if self.anchor.mask is None:
            return None
        type = self.anchor.mask.type
        assert isinstance(type, TensorType)
        added = b.alloc("added", [tile.rows_each * tile.columns_each], type.get_element_type())
        ends = (end_of(self.m, tile.rows), end_of(self.length, tile.columns))
        with b.tasks(["i", "j"], repeat(tile.rows_each, tile.columns_each), unroll=True) as (i, j):
            row, column = self.first_row + self._row(i), self._key(step, j)
            value = mask_element(b, self.anchor, self.head, row, column, ends)
            b.store(value, added, [i * tile.columns_each + j])
        return added

    def _key(self, step: Index, j: Index) -> Index:
        """The number of the thread's j-th key of a tile."""
        return step * self.tile.columns + self._column(j)

    def _score(self, product: SSAValue, step: Index, i: Index, j: Index, added: SSAValue | None) -> SSAValue:
        """The scaled and masked product of a row and a key, -inf where the row does not see the key."""
        b, tile = self.b, self.tile
        scale = self.anchor.scale.value.data
        score = product if scale == 1 else b.mul(product, b.constant(scale, f32))
        if added is not None:
            score = b.add(score, convert(b, b.load(added, [i * tile.columns_each + j]), f32))
        column = self._key(step, j)
        seen = [column < self.length] if end_of(self.length, tile.columns) is not None else []
        if self.anchor.causal.value.data:
            row = self.first_row + self._row(i)
            seen.append(column <= row + self.offset)
        visible = all_of(seen)
        return score if visible is None else b.select(visible, score, b.constant(-inf, f32))

    def _multiply(self, scores: SSAValue) -> None:
        """Adds the products of the thread's queries and keys to `scores`."""
        b, tile = self.b, self.tile
        with b.loop("d", tile.padded_size // _VECTOR) as d:
            first = d * _VECTOR
            of_row = self._vectors("of_row", tile.rows_each, self.queries.shared, self._row, first)
            of_key = self._vectors("of_key", tile.columns_each, self.keys.shared, self._column, first)
            with b.tasks(["i", "j", "e"], repeat(tile.rows_each, tile.columns_each, _VECTOR), unroll=True) as (i, j, e):
                position = i * tile.columns_each + j
                left, right = (b.load(x, [n * _VECTOR + e]) for x, n in ((of_row, i), (of_key, j)))
                b.store(b.add(b.load(scores, [position]), b.mul(left, right)), scores, [position])

    def _vectors(
        self, name: str, count: int, shared: SSAValue, line: Callable[[Index], Index], first: Index
    ) -> SSAValue:
        """Vectors of `count` lines of a shared buffer from element `first` on, in registers."""
        b = self.b
        registers = b.alloc(name, [count * _VECTOR], f32)
        with b.loop("n", count, unroll=True) as n, b.loop("e", _VECTOR, unroll=True) as e:
            value = b.load(shared, [line(n), first + e])
            b.store(value, registers, [n * _VECTOR + e])
        return registers

    def _accumulate(self) -> None:
        """Adds the tile's values, each times its weight, to the thread's part of the result."""
        b, tile = self.b, self.tile
        outputs = tile.vectors * tile.vector
        with b.loop("k", tile.columns // _VECTOR) as k:
            first = k * _VECTOR
            weight = self._vectors("weight", tile.rows_each, self.weights, self._row, first)
            with b.loop("t", _VECTOR, unroll=True) as t:
                value = b.alloc("value", [outputs], f32)
                with b.loop("g", tile.vectors, unroll=True) as g, b.loop("e", tile.vector, unroll=True) as e:
                    element = b.load(self.values.shared, [first + t, self._output(g, e)])
                    b.store(element, value, [g * tile.vector + e])
                with b.tasks(["i", "e"], repeat(tile.rows_each, outputs), unroll=True) as (i, e):
                    position = i * outputs + e
                    product = b.mul(b.load(weight, [i * _VECTOR + t]), b.load(value, [e]))
                    b.store(b.add(b.load(self.acc, [position]), product), self.acc, [position])

    def _output(self, g: Index, e: Index) -> Index:
        """Which element of a row of the result the e-th of the thread's g-th vector is."""
        tile = self.tile
        return (g * tile.lanes + self.lane) * tile.vector + e

    def _store(self) -> None:
        b, tile = self.b, self.tile
        with b.tasks(["i"], repeat(tile.rows_each), unroll=True) as (i,):
            total = b.fold_lanes("add", b.load(self.total, [i]), tile.lanes)
            row = self.first_row + self._row(i)
            share = share_of_keys(b, self.length, b.binary("div", b.constant(1, f32), total))
            # The largest score weighs 1, if there is one: a sum that is not positive belongs to a row without scores.
            counts = b.binary("gt", total, b.constant(0, f32)) if self.anchor.guard.value.data else None
            exists = [row < self.m] if self.m % tile.rows else []
            with b.loop("g", tile.vectors, unroll=True) as g, b.loop("e", tile.vector, unroll=True) as e:
                column = self._output(g, e)
                position = (i * tile.vectors + g) * tile.vector + e
                value = b.mul(b.load(self.acc, [position]), share)
                if counts is not None:
                    value = b.select(counts, value, b.constant(0, f32))
                within = [column < tile.width] if tile.width < tile.padded_width else []
                where = all_of([*exists, *within])
                b.store(narrowed(b, value, self.element), b.output, [*self.head, row, column], where)
