"""The kernel of attention by warpgroups, written for given tiles: what the producer does, and what consumers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from math import e as euler

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.elementwise import convert
from treadle.dialects.hopper import BeforeWaitOp, FenceAsyncOp, NamedBarrierOp
from treadle.dialects.loop import KernelOp
from treadle.dialects.loop.tiles import fragments
from treadle.dialects.task import repeat, spatial
from treadle.schedules.kernel_builder import Index, kernel_builder
from treadle.schedules.templates.attention_tile import key_range, mask_element, may_see_none, share_of_keys
from treadle.schedules.templates.attention_wgmma_tile import (
    ELEMENT_BYTES,
    IN_TURN,
    PLAIN,
    AttentionWgmmaTile,
    RowSoftmax,
)
from treadle.schedules.tiles import CHUNK_BYTES, COLUMNS, HALVES, QUAD, Region, end_of
from treadle.schedules.warpgroups import SLAB, WARPGROUP, Consumer, OperandTile, Pipe, WarpgroupBuilder

_FIRST_TURN = 1
"""The number of the barrier at which the first consumer waits for its turn; the others' follow."""
_ALL_CONSUMERS = 8
"""The number of the barrier at which all consumers meet."""


@dataclass(frozen=True)
class Work:
    """A block's tile of the result, and the keys that it reads.

    first_row: of the block; head: of queries and result; shared_head: of keys and values
    steps: tiles of keys that some row sees, at least one; before: those of the block's tiles before, or as many more or
    less as pipes do not notice
    number: of the block's tiles before
    """

    first_row: Index
    head: Sequence[Index]
    shared_head: Sequence[Index]
    steps: Index
    before: Index
    number: Index


class AttentionWgmmaKernel:
    """Writes the kernel of one attention: see `AttentionWgmma`.

    blocks: at most so many; group: heads whose tiles follow one another
    """

    def __init__(self, anchor: AttentionOp, tile: AttentionWgmmaTile, blocks: int, group: int):
        self.anchor, self.tile, self.group = anchor, tile, group
        self.m, self.n = anchor.scores_shape[-2:]
        self.row_tiles = ceil(self.m / tile.rows)
        self.heads = prod(anchor.shape[:-2])
        self.blocks = min(blocks, self.heads * self.row_tiles)
        self.causal = bool(anchor.causal.value.data)
        self.b = kernel_builder(anchor.operands, anchor.type)
        for buffer, hint in zip(self.b.inputs, ("Q", "K", "V", "M"), strict=False):
            buffer.name_hint = hint

    def build(self, name: str) -> KernelOp:
        """The kernel; to be called once."""
        b, tile, element = self.b, self.tile, self.anchor.type.get_element_type()
        w = self.w = WarpgroupBuilder(b, tile.consumers)
        self.length, self.offset = key_range(b, self.anchor)
        self.queries = w.operand("queries", tile.queries, element, tile.consumers)
        self.keys = w.operand("keys", tile.keys, element, tile.stages)
        self.values = w.operand("values", tile.values, element, tile.stages)
        self.of_queries = w.pipe(tile.consumers, tile.queries.bytes, "queries_", 1)
        self.of_keys = w.pipe(tile.stages, tile.keys.bytes, "keys_")
        self.of_values = w.pipe(tile.stages, tile.values.bytes, "values_")
        with w.producer():
            self._each_tile(self._produce)
        with w.consumer() as consumer:
            self._consume(consumer)
        size, width = tile.size, tile.width
        comment = f"{self.heads} heads: softmax(Q[{self.m}, {size}] * K[{self.n}, {size}]^T) * V[{self.n}, {width}]"
        operands, result = list(self.anchor.operands), self.anchor.type
        return b.kernel(name, operands, result, self.blocks, w.threads, comment, 1)

    # What a block does, one tile after another.

    def _each_tile(self, body: Callable[[Work], None]) -> None:
        """Writes a block's tiles: every second round of them backwards, so that a block with a long one, which come
        first where rows see different numbers of keys, has a short one next."""
        b, total = self.b, self.heads * self.row_tiles
        rounds = ceil(total / self.blocks)

        def one(n: Index, before: Index) -> Work:
            place = b.block
            if self.causal and rounds > 1:
                place = (n % 2).equals(0).select(b.block, self.blocks - 1 - b.block)
            number = place + n * self.blocks
            work = self._work(number, n, before)
            with b.when(number < total if total % self.blocks else None):
                body(work)
            return work

        def carried(n: Index, before: SSAValue) -> SSAValue:
            work = one(n, Index(before, b))
            # Pipes tell stages and parities of phases, no more.
            return ((work.before + work.steps) % (2 * self.tile.stages)).value

        if rounds == 1:
            one(b.index(0), b.index(0))
        elif self.causal or not isinstance(self.length, int):
            b.fold("n", rounds, b.constant(0), carried, at_once=1)
        else:
            steps = ceil(self.length / self.tile.columns)
            with b.loop("n", rounds, at_once=1) as n:
                one(n, n * steps)

    def _work(self, tile: Index, number: Index, before: Index) -> Work:
        each = self.group * self.row_tiles
        place = tile % each
        head = tile // each * self.group + place % self.group
        part = place // self.group
        first_row = (self.row_tiles - 1 - part if self.causal else part) * self.tile.rows
        batch = self.anchor.shape[:-2]
        indices = head.delinearize(batch) if batch else []
        shared = [*indices[:-1], indices[-1] // self.anchor.group_size] if indices else []
        return Work(first_row, indices, shared, self._steps(first_row), before, number)

    def _steps(self, first_row: Index) -> Index:
        """Tiles of keys up to the last that some row of a block sees; one where none sees any."""
        b, columns = self.b, self.tile.columns
        if not self.causal:
            if isinstance(self.length, int):
                return b.index(ceil(self.length / columns))
            return (self.length.max(1) + (columns - 1)) // columns
        end = ((first_row + self.tile.rows).min(self.m) + self.offset).min(self.length)
        if may_see_none(self.offset) or not isinstance(self.length, int):
            end = end.max(1)
        return (end + (columns - 1)) // columns

    # The producer.

    def _produce(self, work: Work) -> None:
        """Keys of a step and values of the one before, from the last keys on, so that tiles with masks come first.
        Queries follow the first keys, which may be on their way before the queries of the tile before are read."""
        b = self.b
        self._copy_keys(work, b.index(0))
        for consumer in range(self.tile.consumers):
            stage = self.of_queries.acquire(work.number * self.tile.consumers + consumer)
            first = work.first_row + consumer * SLAB
            lines = self._lines(b.inputs[0], first, work.head, self.m, self.tile.queries, self.tile.size)
            self.w.copy(lines, self.queries, stage, self.of_queries)
        with b.loop("step", work.steps, begin=1, at_once=1) as step:
            self._copy_keys(work, step)
            self._copy_values(work, step - 1)
        self._copy_values(work, work.steps - 1)

    def _copy_keys(self, work: Work, step: Index) -> None:
        stage, first = self.of_keys.acquire(work.before + step), self._first_key(work, step)
        lines = self._lines(self.b.inputs[1], first, work.shared_head, self.n, self.tile.keys, self.tile.size)
        self.w.copy(lines, self.keys, stage, self.of_keys)

    def _copy_values(self, work: Work, step: Index) -> None:
        stage, first = self.of_values.acquire(work.before + step), self._first_key(work, step)
        lines = self._lines(self.b.inputs[2], first, work.shared_head, self.n, self.tile.values, self.tile.width)
        self.w.copy(lines.transposed, self.values, stage, self.of_values)

    def _first_key(self, work: Work, step: Index) -> Index:
        return (work.steps - 1 - step) * self.tile.columns

    def _lines(
        self, buffer: SSAValue, first: Index, head: Sequence[Index], total: int, tile: OperandTile, size: int
    ) -> Region:
        """Lines of a head that a tile in shared memory has room for."""
        covered = (tile.own, tile.terms) if tile.along_k else (tile.terms, tile.own)
        return Region.of(self.b, buffer, (first, self.b.index(0)), (total, size), covered, head)

    # The consumers.

    def _consume(self, consumer: Consumer) -> None:
        b, tile = self.b, self.tile
        self.consumer = consumer
        self.scores = consumer.sums("scores", f32, SLAB, tile.columns)
        self.acc = consumer.sums("acc", f32, SLAB, tile.result_columns)
        element = self.anchor.type.get_element_type()
        of_a, _, _ = fragments(element, element)
        self.weights = b.alloc("weights", [tile.columns // COLUMNS], of_a)
        self.softmax = RowSoftmax(self.scores, *self._scale)
        if self._takes_turns:
            with b.when(consumer.number.equals(tile.consumers - 1)):
                self._pass_turn()
        self._each_tile(self._attend)
        consumer.drain()
        if self._takes_turns:
            # The last turn, which nobody needs.
            with b.when(consumer.number.equals(0)):
                self._await_turn()

    @property
    def _scale(self) -> tuple[float, float]:
        """The factor of products, and that of what is exponentiated base 2: together scale times log2 e. One does where
        it cannot overflow, and keeps the order: masks reach the end of f32's range, and products, for a factor above
        1."""
        scale = self.anchor.scale.value.data
        whole = scale * log2(euler)
        return (1, whole) if self.anchor.mask is None and 0 < whole <= 1 else (scale, log2(euler))

    @property
    def _takes_turns(self) -> bool:
        return self.tile.order == IN_TURN and self.tile.consumers > 1

    def _await_turn(self) -> None:
        self.b.perform(NamedBarrierOp((self.consumer.number + _FIRST_TURN).value, 2 * WARPGROUP))

    def _pass_turn(self) -> None:
        following = (self.consumer.number + 1) % self.tile.consumers + _FIRST_TURN
        self.b.perform(NamedBarrierOp(following.value, 2 * WARPGROUP, arrive=True))

    def _attend(self, work: Work) -> None:
        """A tile of the result."""
        b, consumer, tile = self.b, self.consumer, self.tile
        queries = work.number * tile.consumers + consumer.number
        self.softmax.start()
        place = self.of_queries.wait(queries)
        steps = work.steps
        # All rows of the consumer see the tiles of keys from this one on, counted from the last.
        masked = b.index(1)
        if self.causal:
            clear = (work.first_row + consumer.number * SLAB + self.offset + 1).min(self.length)
            # Rows that do not exist may see more tiles than those that do.
            masked = steps - (clear.max(0) // tile.columns).min(steps)
        is_ragged = end_of(self.length, tile.columns) is not None
        first = b.index(0)
        if tile.order == PLAIN:
            self._clear_values(work)
            with b.loop("step", masked, at_once=1) as step:
                self._plain_step(work, place, step, hides=self.causal or is_ragged)
            with b.loop("step", steps, begin=masked, at_once=1) as step:
                self._plain_step(work, place, step, hides=False)
            self._release(self.of_queries, queries)
        else:
            self._start_scores(work, place, first)
            consumer.finish(0, self.scores)
            self._release(self.of_keys, work.before)
            self._weigh(work, first, hides=self.causal or is_ragged)
            self.softmax.pack(self.weights)
            self._clear_values(work)
            if self.causal:
                with b.loop("step", masked, begin=1, at_once=1) as step:
                    self._step(work, place, step, hides=True)
            with b.loop("step", steps, begin=masked.max(1) if self.causal else 1, at_once=1) as step:
                self._step(work, place, step, hides=False)
            self._release(self.of_queries, queries)
            last = steps - 1
            self._add_values(work, last)
            consumer.finish(0, self.acc)
            self._release(self.of_values, work.before + last)
        self._finish(work)

    def _release(self, pipe: Pipe, step: Index) -> None:
        pipe.release(pipe.stage(step), self.consumer.lane)

    def _plain_step(self, work: Work, place: Index, step: Index, *, hides: bool) -> None:
        """Scores, weights and the products with the values of one tile of keys."""
        consumer = self.consumer
        self._start_scores(work, place, step)
        consumer.finish(0, self.scores)
        self._release(self.of_keys, work.before + step)
        self._weigh(work, step, hides=hides)
        self.softmax.pack(self.weights)
        self.acc.scale_rows(self.softmax.shrink)
        self._add_values(work, step)
        consumer.finish(0, self.acc)
        self._release(self.of_values, work.before + step)

    def _step(self, work: Work, place: Index, step: Index, *, hides: bool) -> None:
        """Scores and weights of a tile of keys, and the products with the values of the tile before."""
        b, consumer = self.b, self.consumer
        self._start_scores(work, place, step, in_turn=self._takes_turns)
        self._add_values(work, step - 1)
        if self._takes_turns:
            self._pass_turn()
        consumer.finish(1, self.scores)
        self._release(self.of_keys, work.before + step)
        self._weigh(work, step, hides=hides)
        total = self.softmax.total
        b.perform(BeforeWaitOp(b.add(b.load(total, [0, 0]), b.load(total, [0, 1]))))
        consumer.finish(0, self.acc)
        self._release(self.of_values, work.before + (step - 1))
        self.softmax.pack(self.weights)
        self.acc.scale_rows(self.softmax.shrink)

    def _start_scores(self, work: Work, place: Index, step: Index, *, in_turn: bool = False) -> None:
        consumer = self.consumer
        stage = self.of_keys.wait(work.before + step)
        if in_turn:
            self._await_turn()
        consumer.begin()
        consumer.products((self.queries, place, 0), (self.keys, stage), self.scores, self.tile.terms, keep=False)
        consumer.end()

    def _add_values(self, work: Work, step: Index) -> None:
        consumer = self.consumer
        stage = self.of_values.wait(work.before + step)
        consumer.begin()
        consumer.products_of_registers(self.weights, (self.values, stage), self.acc, keep=step > 0)
        consumer.end()

    def _clear_values(self, work: Work) -> None:
        """Makes values 0 that lie in the last tile of keys behind those that exist: they weigh 0, but may be NaN."""
        b, tile = self.b, self.tile
        if isinstance(self.length, int):
            return
        stage, rest = self.of_values.wait(work.before), self.length - self._first_key(work, b.index(0))
        parts, rows, row = tile.values.shape
        chunk, workers = CHUNK_BYTES // ELEMENT_BYTES, tile.consumers * WARPGROUP
        chunks = row // chunk
        mapping = repeat(parts, ceil(rows * chunks / workers), 1) * spatial(1, workers // chunks, chunks)
        worker = self.consumer.number * WARPGROUP + b.thread % WARPGROUP
        with b.tasks(["part", "row", "chunk"], mapping, worker, unroll=True) as (part, at, first):
            inside = (at >= rest) & (at < rows)
            with b.when(inside), b.tasks(["e"], repeat(chunk), unroll=True, vector=True) as (e,):
                zero = b.constant(0, self.anchor.type.get_element_type())
                b.store(zero, self.values.buffer, [stage, part, at, first * chunk + e])
        b.perform(FenceAsyncOp())
        b.perform(NamedBarrierOp(b.index(_ALL_CONSUMERS).value, workers))

    def _weigh(self, work: Work, step: Index, *, hides: bool) -> None:
        """Scores of a tile of keys become weights."""
        b, scores, first = self.b, self.scores, self._first_key(work, step)
        ends = end_of(self.m, self.tile.rows), end_of(self.length, self.tile.columns)

        def added(p: Index, q: Index, h: Index, c: Index) -> Scalar:
            row, column = work.first_row + scores.row(b.index(0), h), first + scores.column(p, q, c)
            return convert(b, mask_element(b, self.anchor, work.head, row, column, ends), f32)

        def limit(h: Index) -> Index:
            end = self.length
            if self.causal:
                end = (work.first_row + scores.row(b.index(0), h) + self.offset + 1).min(end)
            return end - (first + scores.lane_column)

        self.softmax.prepare(None if self.anchor.mask is None else added, limit if hides else None)
        self.softmax.weigh()

    def _finish(self, work: Work) -> None:
        """The rows of the result, divided by the sums."""
        b, acc, tile = self.b, self.acc, self.tile
        shares = b.alloc("shares", [1, HALVES], f32)
        counts = bool(self.anchor.guard.value.data)
        with b.tasks(["h"], repeat(HALVES), unroll=True) as (h,):
            total = b.fold_lanes("add", b.load(self.softmax.total, [0, h]), QUAD)
            share = share_of_keys(b, self.length, b.binary("div", b.constant(1, f32), total))
            b.store(share, shares, [0, h])
            b.store(total, self.softmax.total, [0, h])

        def divided(r: Index, p: Index, q: Index, h: Index, c: Index) -> Scalar:
            value = b.mul(acc.load(r, p, q, h, c), b.load(shares, [0, h]))
            if not counts:
                return value
            # The largest score weighs 1, if there is one: a sum that is not positive is of a row without scores.
            has_scores = b.binary("gt", b.load(self.softmax.total, [0, h]), b.constant(0, f32))
            return b.select(has_scores, value, b.constant(0, f32))

        acc.set(divided)
        place, extents = (work.first_row, b.index(0)), (self.m, tile.width)
        target = Region.of(b, b.output, place, extents, (tile.rows, tile.result_columns), work.head)
        self.consumer.store_pieces(acc, target, 1, b.index(0))
