"""Matrix product on CUDA cores: tiles of A and B in shared memory, a tile of C in each thread's registers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import ceil, gcd, prod
from typing import ClassVar, TypeAlias

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from treadle.dialects.graph import ComputeOp, MatmulOp
from treadle.dialects.graph.definition import widened
from treadle.dialects.graph.dtypes import byte_width, is_float
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.errors import TreadleError
from treadle.schedules.access_analysis import spread, vector_width
from treadle.schedules.accumulator import accumulator, narrowed
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.template import Anchor, Choices, Knob, Template, number
from treadle.schedules.templates.simt_tile import Filling, SimtTile
from treadle.target import Target

_MANY = 64
"""Accumulators of a thread from which registers, not threads, bound the blocks on a multiprocessor."""
_SOME = 32
"""Accumulators of a thread from which the compiler is told how many blocks a multiprocessor is to hold."""
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
    16-bit floats are multiplied and added in f32, and C is rounded once.

    Source: Hidet (ASPLOS 2023), section 5.1.2 and figures 5 and 8.
    """

    name: ClassVar[str] = "matmul_simt"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("warps", ((1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (2, 4)), "warps of a block along M and N"),
        Knob("repeats", ((1, 1), (1, 2), (2, 1), (2, 2)), "tiles of a warp along M and N"),
        Knob("thread", ((2, 2), (4, 4)), "neighbouring elements of a thread along M and N"),
        Knob("depth", (8, 16), "extent of the tiles along K"),
        Knob("resident", (1, 2), "blocks that a multiprocessor is to hold at once: fewer registers a thread"),
        Knob("a_order", ("k", "m"), "what consecutive threads take of A: elements along K or along M"),
        Knob("b_order", ("n", "k"), "what consecutive threads take of B: elements along N or along K"),
        Knob("a_vector", (1, 2, 4), "consecutive elements of A that a thread loads at once, at most"),
        Knob("b_vector", (1, 2, 4), "consecutive elements of B that a thread loads at once, at most"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and is_float(anchor.type.get_element_type())

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        warps, repeats, thread = _largest_tile(anchor.shape, target.multiprocessors)
        decided = self.decided(anchor, target)
        # Half of the registers do for the largest tile, but not for its predicates and scalar addresses, too.
        tight = (
            anchor.shape[-2] % 128 == anchor.shape[-1] % 128 == 0 and decided["a_vector"] == decided["b_vector"] == 4
        )
        resident = 2 if tight and (warps, repeats) == _DEFAULTS[0][2][:2] else 1
        tile: dict[str, Choice] = {
            "warps": warps,
            "repeats": repeats,
            "thread": thread,
            "depth": 8,
            "resident": resident,
        }
        return tile | dict(decided)

    def decided(self, anchor: Anchor, target: Target) -> Choices:
        assert isinstance(anchor, MatmulOp)
        (a_axis, a_vector), (b_axis, b_vector) = _order(anchor, anchor.a), _order(anchor, anchor.b)
        return {
            "a_order": "k" if a_axis == -1 else "m",
            "b_order": "n" if b_axis == -1 else "k",
            "a_vector": a_vector,
            "b_vector": b_vector,
        }

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        tile, resident = SimtTile(choices), number(choices, "resident")
        shared = tile.shared_elements * byte_width(anchor.type.get_element_type())
        for what, used, limit in (
            ("threads", tile.threads, target.max_threads_per_block),
            ("bytes of shared memory", shared, target.shared_per_block_static),
            ("resident threads", resident * tile.threads, target.max_warps_per_multiprocessor * target.warp_size),
            ("resident bytes of shared memory", resident * shared, target.shared_per_multiprocessor),
            ("accumulators a thread", tile.outputs, target.registers_per_thread),
            ("resident accumulators", resident * tile.m * tile.n, target.registers_per_multiprocessor),
        ):
            if used > limit:
                raise TreadleError(
                    f"matmul_simt with {tile.m} x {tile.n} tiles takes {used} {what}, {used - limit} too many",
                    accepted=f"at most {limit} on {target.name}",
                )
        if resident > 1 and tile.outputs < _MANY:
            raise TreadleError(
                f"matmul_simt with {tile.outputs} accumulators a thread leaves room for {resident} blocks anyway, "
                f"{_MANY - tile.outputs} fewer than where registers get scarce",
                accepted="resident = 1",
            )
        fillings = ("A", tile.m * tile.depth, tile.a_filling), ("B", tile.depth * tile.n, tile.b_filling)
        for operand, elements, filling in fillings:
            if filling is None:
                raise TreadleError(
                    f"matmul_simt: {operand}'s tile of {elements} elements is not shared out evenly "
                    f"by {tile.threads} threads, {elements % tile.threads} remain",
                    accepted="a tile whose elements are a multiple of the threads",
                )

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        tile = SimtTile(choices)
        # Where nothing is said, ptxas spills a few registers for the sake of one block more.
        resident = number(choices, "resident") if tile.outputs >= _SOME else None
        return _MatmulBody(anchor, tile).build(name, resident)


class _MatmulBody:
    """Writes the kernel of one product."""

    def __init__(self, anchor: MatmulOp, tile: SimtTile):
        self.anchor, self.tile = anchor, tile
        self.m, self.n = anchor.shape[-2:]
        self.k = anchor.reduction_extent
        self.element = anchor.type.get_element_type()
        # What threads multiply and add: products of 16-bit floats are exact in f32.
        self.wide = accumulator(self.element)
        types = [t for t in (anchor.a.type, anchor.b.type) if isinstance(t, TensorType)]
        self.b = KernelBuilder(types, anchor.type)

    def build(self, name: str, resident: int | None) -> KernelOp:
        b, tile = self.b, self.tile
        rows, columns = ceil(self.m / tile.m), ceil(self.n / tile.n)
        batch = self.anchor.shape[:-2]
        self.row = b.mul(b.mod(b.div(b.block, columns), rows), tile.m)
        self.column = b.mul(b.mod(b.block, columns), tile.n)
        self.batch_index = b.delinearize(b.div(b.block, rows * columns), batch) if batch else []
        # A is kept transposed, so that a thread's neighbouring rows lie next to one another.
        self.shared_a = b.alloc("shared_a", [2, tile.depth, tile.row_of_a], self.element, Space.SHARED)
        self.shared_b = b.alloc("shared_b", [2, tile.depth, tile.row_of_b], self.element, Space.SHARED)
        self.acc = b.alloc("acc", [tile.m * tile.n // tile.threads], self.wide)
        with b.tasks(["e"], repeat(tile.outputs), unroll=True) as (e,):
            b.store(b.constant(0, self.wide), self.acc, [e])
        self._pipeline(ceil(self.k / tile.depth))
        self._store()
        grid = rows * columns * prod(batch)
        comment = f"C[{self.m}, {self.n}] = A[{self.m}, {self.k}] * B[{self.k}, {self.n}]"
        operands = [self.anchor.a, self.anchor.b]
        return b.kernel(name, operands, self.anchor.type, grid, tile.threads, comment, resident)

    def _pipeline(self, steps: int) -> None:
        """Figure 5: while one pair of tiles is multiplied, the next is on its way through registers."""
        b = self.b
        next_a = b.alloc("next_a", [self._of("a")[0].held], self.element)
        next_b = b.alloc("next_b", [self._of("b")[0].held], self.element)
        self._fetch(b.constant(0), next_a, next_b)
        self._keep(b.constant(0), next_a, next_b)
        b.barrier()
        with b.loop("step", steps - 1) as step:
            following = b.add(step, 1)
            self._fetch(following, next_a, next_b)
            self._multiply(b.mod(step, 2))
            self._keep(b.mod(following, 2), next_a, next_b)
            b.barrier()
        self._multiply(b.constant((steps - 1) % 2))

    def _of(self, operand: str) -> tuple[Filling, bool]:
        """How an operand's tile is filled, and whether its lines are along K."""
        tile = self.tile
        filling, turned = (tile.a_filling, tile.a_turned) if operand == "a" else (tile.b_filling, tile.b_turned)
        assert filling is not None, "limits reject tiles that threads do not share evenly"
        return filling, turned

    @contextmanager
    def _filling(self, operand: str) -> Generator[tuple[SSAValue, SSAValue, SSAValue]]:
        """A loop over the calling thread's elements of a tile: place along M or N, along K, the element's ordinal."""
        b, (filling, turned) = self.b, self._of(operand)
        other = "i" if operand == "a" else "j"
        names = [other, "k"] if turned else ["k", other]
        with b.tasks(names, filling.mapping, b.thread, unroll=True) as (line, element):
            lines_apart, apart, vectors = filling.strides
            vector = b.add(b.mul(b.div(line, lines_apart), vectors), b.div(element, apart))
            ordinal = b.add(b.mul(vector, filling.vector), b.mod(element, filling.vector))
            yield (line, element, ordinal) if turned else (element, line, ordinal)

    def _fetch(self, step: SSAValue, next_a: SSAValue, next_b: SSAValue) -> None:
        """Global memory to registers: step's tiles of A and B, 0 beyond the matrices."""
        b, first = self.b, self.b.mul(step, self.tile.depth)
        with self._filling("a") as (i, k, ordinal):
            row, depth = b.add(self.row, i), b.add(first, k)
            value = self._guarded(0, row, self.m, self.tile.m, depth, self.k, self.tile.depth)
            b.store(value, next_a, [ordinal])
        with self._filling("b") as (j, k, ordinal):
            depth, column = b.add(first, k), b.add(self.column, j)
            value = self._guarded(1, depth, self.k, self.tile.depth, column, self.n, self.tile.n)
            b.store(value, next_b, [ordinal])

    def _guarded(
        self, operand: int, i: SSAValue, i_end: int, i_tile: int, j: SSAValue, j_end: int, j_tile: int
    ) -> SSAValue:
        b = self.b
        inside = [b.binary("lt", i, i_end)] if i_end % i_tile else []
        inside += [b.binary("lt", j, j_end)] if j_end % j_tile else []
        indices = [*self._batch_of(operand), i, j]
        if not inside:
            return b.load(b.inputs[operand], indices)
        return b.load(b.inputs[operand], indices, b.all(inside), b.constant(0, self.element))

    def _batch_of(self, operand: int) -> list[SSAValue]:
        type = (self.anchor.a, self.anchor.b)[operand].type
        assert isinstance(type, TensorType)
        return self.batch_index if type.get_num_dims() > 2 else []

    def _keep(self, half: SSAValue, next_a: SSAValue, next_b: SSAValue) -> None:
        """Registers to shared memory."""
        b = self.b
        with self._filling("a") as (i, k, ordinal):
            b.store(b.load(next_a, [ordinal]), self.shared_a, [half, k, i])
        with self._filling("b") as (j, k, ordinal):
            b.store(b.load(next_b, [ordinal]), self.shared_b, [half, k, j])

    def _multiply(self, half: SSAValue) -> None:
        """One tile of A times one of B, added to the accumulators."""
        b, tile = self.b, self.tile
        rows = repeat(tile.repeats[0] * tile.thread[0])
        columns = repeat(tile.repeats[1] * tile.thread[1])
        regs_a = b.alloc("regs_a", [rows.shape[0]], self.wide)
        regs_b = b.alloc("regs_b", [columns.shape[0]], self.wide)
        with b.loop("k", tile.depth, unroll=True) as k:
            with b.tasks(["r"], rows, unroll=True) as (r,):
                b.store(widened(b, b.load(self.shared_a, [half, k, self._line(0, r)])), regs_a, [r])
            with b.tasks(["c"], columns, unroll=True) as (c,):
                b.store(widened(b, b.load(self.shared_b, [half, k, self._line(1, c)])), regs_b, [c])
            with b.tasks(["r", "c"], repeat(rows.shape[0], columns.shape[0]), unroll=True) as (r, c):
                e = b.add(b.mul(r, columns.shape[0]), c)
                product = b.mul(b.load(regs_a, [r]), b.load(regs_b, [c]))
                b.store(b.add(b.load(self.acc, [e]), product), self.acc, [e])

    def _line(self, axis: int, r: SSAValue) -> SSAValue:
        """The row or column of the block's tile that this thread's r-th one is."""
        b, tile = self.b, self.tile
        lane, warp = b.mod(b.thread, 32), b.div(b.thread, 32)
        mine = b.div(lane, tile.lanes[1]) if axis == 0 else b.mod(lane, tile.lanes[1])
        of_warp = b.div(warp, tile.warps[1]) if axis == 0 else b.mod(warp, tile.warps[1])
        thread = tile.thread[axis]
        outer = b.add(b.mul(of_warp, tile.repeats[axis]), b.div(r, thread))
        return b.add(b.mul(b.add(b.mul(outer, tile.lanes[axis]), mine), thread), b.mod(r, thread))

    def _store(self) -> None:
        b, tile = self.b, self.tile
        rows, columns = tile.repeats[0] * tile.thread[0], tile.repeats[1] * tile.thread[1]
        with b.tasks(["r", "c"], repeat(rows, columns), unroll=True) as (r, c):
            row, column = b.add(self.row, self._line(0, r)), b.add(self.column, self._line(1, c))
            inside = [b.binary("lt", row, self.m)] if self.m % tile.m else []
            inside += [b.binary("lt", column, self.n)] if self.n % tile.n else []
            value = narrowed(b, b.load(self.acc, [b.add(b.mul(r, columns), c)]), self.element)
            b.store(value, b.output, [*self.batch_index, row, column], b.all(inside))


def _largest_tile(shape: Sequence[int], multiprocessors: int) -> tuple[Pair, Pair, Pair]:
    """The warps, repeats and thread tile of the largest default tile of which every multiprocessor gets a block, if C
    fills at least half of it along M and N, else of one of the smallest; of equally large ones, of that which C fills
    best."""
    *batch, m, n = shape

    def covered(rows: int, columns: int) -> int:
        return prod(batch) * ceil(m / rows) * rows * ceil(n / columns) * columns

    filled = [
        (rows * columns, covered(rows, columns), knobs)
        for rows, columns, knobs in _DEFAULTS
        if rows < 2 * m and columns < 2 * n and covered(rows, columns) >= multiprocessors * rows * columns
    ]
    last = [(-1, covered(rows, columns), knobs) for rows, columns, knobs in _DEFAULTS if (rows, columns) in _SMALLEST]
    # The order of the table, (8, 32) first, decides between equals.
    return min(filled or last[::-1], key=lambda tile: (-tile[0], tile[1]))[2]


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
