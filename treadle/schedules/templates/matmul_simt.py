"""Matrix product on CUDA cores: tiles of A and B in shared memory, a tile of C in each thread's registers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from math import ceil, gcd, prod
from typing import ClassVar, TypeAlias

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, MatmulOp
from treadle.dialects.graph.definition import widened
from treadle.dialects.graph.dtypes import accumulator, byte_width, is_float
from treadle.dialects.graph.elementwise import convert
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.schedules.access_analysis import spread, vector_width
from treadle.schedules.kernel_builder import Index, all_of, kernel_builder, narrowed
from treadle.schedules.pipelines import prefetched
from treadle.schedules.reduction_end import reduction_end, with_end
from treadle.schedules.split_k import (
    SPLIT_K,
    PartialSums,
    block_coordinates,
    first_that_fills,
    number_of_slices,
    shared_out,
    tiles_of,
)
from treadle.schedules.template import (
    Anchor,
    Choices,
    Knob,
    LimitError,
    Template,
    check_limit,
    check_limits,
    number,
    shared_by_batch,
)
from treadle.schedules.templates.simt_tile import CooperativeCopy, SimtTile
from treadle.target import Target

_MANY = 64
"""Accumulators of a thread from which registers, not threads, bound the blocks on a multiprocessor."""
_ONE_BLOCK = "min_blocks_per_sm = 1"
_TERMS = 128
"""Terms of a slice, at least: an element then takes 256 operations for the 8 bytes of its partial sum that are written
and read, more than any target's operations a byte."""
_BLOCK_K = 8
"""Extent along K of the tiles of a default."""
_LONGEST = 4
"""Elements of the longest vector, of 4 bytes each."""


Pair: TypeAlias = tuple[int, int]
_DEFAULTS: tuple[tuple[int, int, tuple[Pair, Pair, Pair]], ...] = (
    (128, 128, ((4, 2), (2, 2), (4, 4))),
    (64, 64, ((2, 2), (2, 1), (4, 4))),
    (32, 64, ((2, 2), (1, 1), (4, 4))),
    (64, 32, ((2, 1), (2, 1), (4, 4))),
    (16, 32, ((2, 2), (1, 1), (2, 2))),
    (32, 16, ((2, 1), (2, 1), (2, 2))),
    (8, 32, ((1, 2), (1, 1), (2, 2))),
)
"""Rows and columns of the tiles that a default chooses from, with their warps, repeats and thread tile."""
_SMALLEST = ((8, 32), (32, 16))
"""Those of which one is taken where none gives every multiprocessor a block."""


class MatmulSimt(Template):
    """The CUDA-core product of the paper: C's tile is `spatial(warps) * repeat(repeats) * spatial(4, 8) *
    repeat(thread)`, A's and B's tiles are loaded by all threads together, two of each, so that one is filled while
    the other is used. Every size is covered: loads beyond the matrices give 0, stores beyond C are left out.
    16-bit floats are multiplied and added in f32, and C is rounded once; those of 8 bits, with sums in f32, are
    converted where they are loaded.

    Source: Hidet (ASPLOS 2023), section 5.1.2 and figures 5 and 8.
    """

    name: ClassVar[str] = "matmul_simt"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("warps", ((1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (2, 4)), "warps of a block along M and N"),
        Knob("repeats", ((1, 1), (1, 2), (2, 1), (2, 2)), "tiles of a warp along M and N"),
        Knob("thread", ((2, 2), (4, 4)), "neighbouring elements of a thread along M and N"),
        Knob("block_k", (8, 16), "extent of the tiles along K"),
        Knob("min_blocks_per_sm", (1, 2), "blocks that a multiprocessor is to hold at once: fewer registers a thread"),
        Knob("a_order", ("k", "m"), "what consecutive threads take of A: elements along K or along M"),
        Knob("b_order", ("n", "k"), "what consecutive threads take of B: elements along N or along K"),
        Knob("a_vector", (1, 2, 4), "consecutive elements of A that a thread loads at once, at most"),
        Knob("b_vector", (1, 2, 4), "consecutive elements of B that a thread loads at once, at most"),
        SPLIT_K,
        Knob("group", (1, 8), "rows of blocks that run next to one another, so that they share B's columns in L2", 1),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and is_float(anchor.type.get_element_type())

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, MatmulOp)
        rows, columns, (warps, repeats, thread) = _default_tile(anchor, target)
        decided = self.decided(anchor, target)
        m, n = anchor.shape[-2:]
        largest = (warps, repeats) == _DEFAULTS[0][2][:2]
        min_blocks_per_sm = 2 if largest and not _needs_more(anchor, decided, 8, m % 128 or n % 128) else 1
        tile: dict[str, Choice] = {
            "warps": warps,
            "repeats": repeats,
            "thread": thread,
            "block_k": _BLOCK_K,
            "min_blocks_per_sm": min_blocks_per_sm,
        }
        return tile | dict(decided) | {"split_k": _slices(anchor, rows, columns, _BLOCK_K, target)}

    def decided(self, anchor: Anchor, target: Target) -> Choices:
        assert isinstance(anchor, MatmulOp)
        (a_axis, a_vector), (b_axis, b_vector) = _order(anchor, anchor.a), _order(anchor, anchor.b)
        return {
            "a_order": "k" if a_axis == -1 else "m",
            "b_order": "n" if b_axis == -1 else "k",
            "a_vector": a_vector,
            "b_vector": b_vector,
        }

    def dependent(self, anchor: Anchor, target: Target) -> Mapping[str, Callable[[Choices], Choice]]:
        def split_k(choices: Choices) -> Choice:
            assert isinstance(anchor, MatmulOp)
            tile = SimtTile(choices)
            return _slices(anchor, tile.m, tile.n, tile.block_k, target)

        return {"split_k": split_k}

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """Each column of tiles fetches all of A, each row of tiles all of B."""
        assert isinstance(anchor, MatmulOp)
        tile = SimtTile(self.default(anchor, target))
        fetches = (anchor.a, ceil(anchor.shape[-1] / tile.n)), (anchor.b, ceil(anchor.shape[-2] / tile.m))
        return sum((shared_by_batch(anchor, x) * times for x, times in fetches if x is operand), start=Fraction(0))

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, MatmulOp)
        tile, blocks = SimtTile(choices), number(choices, "min_blocks_per_sm")
        shared_out(anchor, number(choices, "split_k"), tile.block_k).check(self.name)
        shared = tile.shared_elements * byte_width(anchor.type.get_element_type())
        used = (
            ("threads", tile.threads, target.max_threads_per_block),
            ("bytes of shared memory", shared, target.shared_per_block_static),
            ("resident threads", blocks * tile.threads, target.max_warps_per_multiprocessor * target.warp_size),
            ("resident bytes of shared memory", blocks * shared, target.shared_per_multiprocessor),
            ("accumulators a thread", tile.outputs, target.registers_per_thread),
            ("resident accumulators", blocks * tile.m * tile.n, target.registers_per_multiprocessor),
        )
        check_limits(f"matmul_simt with {tile.m} x {tile.n} tiles", used, target)
        if blocks > 1:
            said = f"with {tile.outputs} accumulators a thread leaves room for {blocks} blocks anyway"
            message = f"matmul_simt {said}, {_MANY - tile.outputs} fewer than where registers get scarce"
            check_limit("accumulators that several blocks need", _MANY, tile.outputs, None, message, _ONE_BLOCK)
        left = target.registers_per_multiprocessor // (blocks * tile.threads)
        overhang = anchor.shape[-2] % tile.m or anchor.shape[-1] % tile.n
        needs_more = _needs_more(anchor, choices, tile.block_k, overhang) if left <= 2 * tile.outputs else None
        if needs_more is not None:
            said = f"{left} registers a thread, of {blocks} blocks of {tile.threads}, are too few for {tile.outputs}"
            message = f"matmul_simt: {said} accumulators and {needs_more}"
            check_limit("registers a thread of several blocks", 2 * tile.outputs + 1, left, None, message, _ONE_BLOCK)
        fillings = ("A", tile.m * tile.block_k, tile.a_filling), ("B", tile.block_k * tile.n, tile.b_filling)
        for operand, elements, filling in fillings:
            if filling is None:
                raise LimitError(
                    f"elements of {operand}'s tile that all threads copy",
                    elements + -elements % tile.threads,
                    elements,
                    message=f"matmul_simt: {operand}'s tile of {elements} elements is not shared out evenly "
                    f"by {tile.threads} threads, {elements % tile.threads} remain",
                    accepted="a tile whose elements are a multiple of the threads",
                )

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        tile = SimtTile(choices)
        group = number({"group": 1, **choices}, "group")
        return _MatmulBody(anchor, tile, number(choices, "split_k"), group).build(name, tile.min_blocks)


def _needs_more(anchor: Anchor, choices: Choices, block_k: int, overhang: int) -> str | None:
    """What needs more registers than twice as many as there are accumulators; None if nothing does.

    A bound with a margin: each of these alone makes some shape spill on some GPU (NVRTC 13.0).
    """
    if byte_width(accumulator(anchor.type.get_element_type())) > 4:
        return "their other halves"
    if overhang:
        return f"predicates of tiles that overhang by {overhang}"
    if block_k > 8:
        return f"the prefetch of tiles with block_k = {block_k}"
    if choices["a_vector"] != _LONGEST or choices["b_vector"] != _LONGEST:
        return f"addresses of vectors of {choices['a_vector']} and {choices['b_vector']}"
    if choices["a_order"] == "m" and choices["b_order"] == "k":
        return "two operands that are both transposed"
    if choices.get("split_k", 1) != 1:
        return "the slices that are added to them"
    return None


class _MatmulBody:
    """Writes the kernel of one product."""

    def __init__(self, anchor: MatmulOp, tile: SimtTile, split_k: int, group: int):
        self.anchor, self.tile, self.group = anchor, tile, group
        self.slices = shared_out(anchor, split_k, tile.block_k)
        self.m, self.n = anchor.shape[-2:]
        self.k = anchor.reduction_extent
        self.element = anchor.type.get_element_type()
        # What threads multiply and add: products of 16-bit floats are exact in f32.
        self.wide = accumulator(self.element)
        self.end = reduction_end(anchor)
        self.operands = with_end([anchor.a, anchor.b], self.end)
        self.b = kernel_builder(self.operands, anchor.type)

    def build(self, name: str, min_blocks_per_sm: int | None) -> KernelOp:
        b, tile = self.b, self.tile
        rows, columns = ceil(self.m / tile.m), ceil(self.n / tile.n)
        batch = self.anchor.shape[:-2]
        tiles = rows * columns * prod(batch)
        tile_index, slice = b.block, None
        if self.slices.number > 1:
            tile_index, slice = b.block % tiles, b.block // tiles
        row, column = (tile_index // columns) % rows, tile_index % columns
        if self.group > 1:
            of_matrix = tile_index % (rows * columns) if batch else tile_index
            row, column = block_coordinates(of_matrix, rows, columns, self.group)
        self.row, self.column = row * tile.m, column * tile.n
        self.batch_index = (tile_index // (rows * columns)).delinearize(batch) if batch else []
        # A is kept transposed, so that a thread's neighbouring rows lie next to one another.
        self.shared_a = b.alloc("shared_a", [2, tile.block_k, tile.row_of_a], self.element, Space.SHARED)
        self.shared_b = b.alloc("shared_b", [2, tile.block_k, tile.row_of_b], self.element, Space.SHARED)
        self.acc = b.alloc("acc", [tile.m * tile.n // tile.threads], self.wide)
        with b.tasks(["e"], repeat(tile.outputs), unroll=True) as (e,):
            b.store(b.constant(0, self.wide), self.acc, [e])
        each = self.slices.length(b, self.end, self.operands)
        self._pipeline(None if slice is None else slice * each, each)
        if slice is None:
            self._store()
        else:
            self._add_up(tiles, tile_index, slice)
        grid = tiles * self.slices.number
        comment = f"C[{self.m}, {self.n}] = A[{self.m}, {self.k}] * B[{self.k}, {self.n}]"
        return b.kernel(name, self.operands, self.anchor.type, grid, tile.threads, comment, min_blocks_per_sm)

    def _add_up(self, tiles: int, tile_index: Index, slice: Index) -> None:
        """The tile's last block adds up the slices, and stores."""
        b, tile = self.b, self.tile
        sums = PartialSums(b, tiles, self.slices.number, tile.threads, tile.outputs, self.wide)
        last = sums.keep(tile_index, slice, lambda v, e: b.load(self.acc, [v * sums.lanes + e]))
        with b.when(last):
            sums.add_up(tile_index, self.acc)
            self._store()

    def _pipeline(self, first: Index | None, steps: Index | int) -> None:
        """Figure 5: while one pair of tiles is multiplied, the next is prefetched into registers. `first` is the
        step to begin with, 0 if None."""
        b = self.b

        def at(step: Index) -> Index:
            return step if first is None else first + step

        next_a = b.alloc("next_a", [self._of("a")[0].per_thread], self.element)
        next_b = b.alloc("next_b", [self._of("b")[0].per_thread], self.element)
        prefetched(
            b,
            "step",
            steps,
            lambda step: self._fetch(at(step), next_a, next_b),
            lambda half: self._keep(half, next_a, next_b),
            lambda _, half: self._multiply(half),
        )

    def _of(self, operand: str) -> tuple[CooperativeCopy, bool]:
        """How an operand's tile is filled, and whether its lines are along K."""
        tile = self.tile
        filling = tile.a_filling if operand == "a" else tile.b_filling
        assert filling is not None, "limits reject tiles that threads do not share evenly"
        return filling, tile.a_transposed if operand == "a" else tile.b_transposed

    @contextmanager
    def _filling(self, operand: str) -> Generator[tuple[Index, Index, Index]]:
        """A loop over the calling thread's elements of a tile: its position along M or N, along K, and its ordinal."""
        b, (filling, transposed) = self.b, self._of(operand)
        other = "i" if operand == "a" else "j"
        names = [other, "k"] if transposed else ["k", other]
        with b.tasks(names, filling.mapping, b.thread, unroll=True) as (line, element):
            lines_apart, apart, vectors = filling.strides
            vector = (line // lines_apart) * vectors + element // apart
            ordinal = vector * filling.vector + element % filling.vector
            yield (line, element, ordinal) if transposed else (element, line, ordinal)

    def _fetch(self, step: Index, next_a: SSAValue, next_b: SSAValue) -> None:
        """Global memory to registers: step's tiles of A and B, 0 beyond the matrices."""
        b, first = self.b, step * self.tile.block_k
        with self._filling("a") as (i, k, ordinal):
            row, term = self.row + i, first + k
            value = self._guarded(0, row, self.m, self.tile.m, term, self.k, self.slices.covered)
            b.store(value, next_a, [ordinal])
        with self._filling("b") as (j, k, ordinal):
            term, column = first + k, self.column + j
            value = self._guarded(1, term, self.k, self.slices.covered, column, self.n, self.tile.n)
            b.store(value, next_b, [ordinal])

    def _guarded(self, operand: int, i: Index, i_end: int, i_tile: int, j: Index, j_end: int, j_tile: int) -> SSAValue:
        b = self.b
        inside = [i < i_end] if i_end % i_tile else []
        inside += [j < j_end] if j_end % j_tile else []
        indices = [*self._batch_of(operand), i, j]
        buffer, element = b.inputs[operand], self._type_of(operand).get_element_type()
        value = b.load(buffer, indices, all_of(inside), b.constant(0, element)) if inside else b.load(buffer, indices)
        return convert(b, value, self.element)

    def _batch_of(self, operand: int) -> list[Index]:
        return self.batch_index if self._type_of(operand).get_num_dims() > 2 else []

    def _type_of(self, operand: int) -> TensorType:
        type = (self.anchor.a, self.anchor.b)[operand].type
        assert isinstance(type, TensorType)
        return type

    def _keep(self, half: Index, next_a: SSAValue, next_b: SSAValue) -> None:
        """Registers to shared memory."""
        b = self.b
        with self._filling("a") as (i, k, ordinal):
            b.store(b.load(next_a, [ordinal]), self.shared_a, [half, k, i])
        with self._filling("b") as (j, k, ordinal):
            b.store(b.load(next_b, [ordinal]), self.shared_b, [half, k, j])

    def _multiply(self, half: Index) -> None:
        """One tile of A times one of B, added to the accumulators."""
        b, tile = self.b, self.tile
        rows = repeat(tile.repeats[0] * tile.thread[0])
        columns = repeat(tile.repeats[1] * tile.thread[1])
        regs_a = b.alloc("regs_a", [rows.shape[0]], self.wide)
        regs_b = b.alloc("regs_b", [columns.shape[0]], self.wide)
        with b.loop("k", tile.block_k, unroll=True) as k:
            with b.tasks(["r"], rows, unroll=True) as (r,):
                b.store(widened(b, b.load(self.shared_a, [half, k, self._line(0, r)])), regs_a, [r])
            with b.tasks(["c"], columns, unroll=True) as (c,):
                b.store(widened(b, b.load(self.shared_b, [half, k, self._line(1, c)])), regs_b, [c])
            with b.tasks(["r", "c"], repeat(rows.shape[0], columns.shape[0]), unroll=True) as (r, c):
                e = r * columns.shape[0] + c
                product = b.mul(b.load(regs_a, [r]), b.load(regs_b, [c]))
                b.store(b.add(b.load(self.acc, [e]), product), self.acc, [e])

    def _line(self, axis: int, r: Index) -> Index:
        """The row or column of the block's tile that this thread's r-th one is."""
        b, tile = self.b, self.tile
        lane, warp = b.thread % 32, b.thread // 32
        mine = lane // tile.lanes[1] if axis == 0 else lane % tile.lanes[1]
        of_warp = warp // tile.warps[1] if axis == 0 else warp % tile.warps[1]
        thread = tile.thread[axis]
        outer = of_warp * tile.repeats[axis] + r // thread
        return (outer * tile.lanes[axis] + mine) * thread + r % thread

    def _store(self) -> None:
        b, tile = self.b, self.tile
        rows, columns = tile.repeats[0] * tile.thread[0], tile.repeats[1] * tile.thread[1]
        with b.tasks(["r", "c"], repeat(rows, columns), unroll=True) as (r, c):
            row, column = self.row + self._line(0, r), self.column + self._line(1, c)
            inside = [row < self.m] if self.m % tile.m else []
            inside += [column < self.n] if self.n % tile.n else []
            value = narrowed(b, b.load(self.acc, [r * columns + c]), self.element)
            b.store(value, b.output, [*self.batch_index, row, column], all_of(inside))


def _slices(anchor: MatmulOp, rows: int, columns: int, block_k: int, target: Target) -> int:
    """Into how many slices the terms of tiles of `rows` x `columns` are split."""
    blocks = tiles_of(anchor, rows, columns)
    return number_of_slices(blocks, anchor.reduction_extent, block_k, _TERMS, target.multiprocessors)


def _default_tile(anchor: MatmulOp, target: Target) -> tuple[int, int, tuple[Pair, Pair, Pair]]:
    """The largest default tile, with its rows and columns, that gives every multiprocessor a block, whole or in
    slices, if C fills at least half of it along M and N; one of the smallest where none does. Of equally large ones,
    that which C fills best."""
    m, n = anchor.shape[-2:]
    knobs = {(rows, columns): each for rows, columns, each in _DEFAULTS}

    def covered(tile: Pair) -> int:
        return tiles_of(anchor, *tile) * prod(tile)

    def split_k(rows: int, columns: int) -> int:
        return _slices(anchor, rows, columns, _BLOCK_K, target)

    filled = sorted(
        (tile for tile in knobs if tile[0] < 2 * m and tile[1] < 2 * n),
        key=lambda tile: (-prod(tile), covered(tile)),
    )
    tiles = [*filled, min(_SMALLEST, key=covered)]
    rows, columns = first_that_fills(anchor, tiles, split_k, target.multiprocessors)
    return rows, columns, knobs[rows, columns]


def _order(anchor: MatmulOp, operand: SSAValue) -> tuple[int, int]:
    """The axis (-1 or -2) along which an operand's elements are nearest in memory, and how many of them may be loaded
    at once. Of a matrix that the group computes, the reads that it is computed from count."""
    producer = operand.owner
    if not isinstance(producer, ComputeOp) or producer.parent_op() is not anchor.parent_op():
        assert isinstance(operand.type, TensorType)
        return -1, gcd(operand.type.get_shape()[-1], _LONGEST)
    *_, row, column = producer.body.block.args
    axis, index = (-1, column) if spread(producer, column) <= spread(producer, row) else (-2, row)
    return axis, vector_width(producer, index, _LONGEST)
