"""Matrix product on CUDA cores: tiles of A and B in shared memory, a tile of C in each thread's registers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from treadle.dialects.graph import ComputeOp, MatmulOp
from treadle.dialects.graph.dtypes import byte_width, is_float
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.schedule import Choice
from treadle.dialects.task import Mapping, repeat, spatial
from treadle.errors import TreadleError
from treadle.schedules.access_analysis import IndexMap, stride_along
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.template import Anchor, Choices, Knob, Template
from treadle.target import Target

_LANES = (4, 8)
"""How the lanes of a warp lie over a warp's tile."""
_PADDING = 4
"""Elements after each row in shared memory: lanes that store a column of 8 then meet in no bank of 4 bytes, and
16 bytes stay aligned."""


class MatmulSimt(Template):
    """The CUDA-core product of the paper: C's tile is `spatial(warps) * repeat(repeats) * spatial(4, 8) *
    repeat(thread)`, A's and B's tiles are loaded by all threads together, two of each, so that one is filled while
    the other is used. Every size is covered: loads beyond the matrices give 0, stores beyond C are left out.

    Source: Hidet (ASPLOS 2023), section 5.1.2 and figures 5 and 8.
    """

    name: ClassVar[str] = "matmul_simt"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("warps", ((1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (2, 4)), "warps of a block along M and N"),
        Knob("repeats", ((1, 1), (1, 2), (2, 1), (2, 2)), "tiles of a warp along M and N"),
        Knob("thread", ((2, 2), (4, 4)), "neighbouring elements of a thread along M and N"),
        Knob("depth", (8, 16), "extent of the tiles along K"),
        Knob("a_order", ("k", "m"), "what consecutive threads take of A: elements along K or along M"),
        Knob("b_order", ("n", "k"), "what consecutive threads take of B: elements along N or along K"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and is_float(anchor.type.get_element_type())

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        m, n = anchor.shape[-2:]
        warps: tuple[int, int] = (2, 2)
        repeats, thread = (1, 1), (4, 4)
        large = prod(anchor.shape) >= 128 * 128 * target.multiprocessors
        if large and min(m, n) >= 128:
            warps, repeats = (4, 2), (2, 2)
        elif prod(anchor.shape) < 64 * 32 * target.multiprocessors or min(m, n) <= 32:
            warps, thread = ((2, 2), (2, 2)) if m > 16 else ((1, 2), (2, 2))
        assert isinstance(anchor, MatmulOp)
        return {
            "warps": warps,
            "repeats": repeats,
            "thread": thread,
            "depth": 16 if anchor.reduction_extent >= 64 else 8,
            "a_order": "k" if _contiguous(anchor, anchor.a) else "m",
            "b_order": "n" if _contiguous(anchor, anchor.b) else "k",
        }

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        tile = _Tile(choices)
        element = byte_width(anchor.type.get_element_type())
        shared = 2 * tile.depth * (tile.m + tile.n + 2 * _PADDING) * element
        for what, used, limit in (
            ("threads", tile.threads, target.max_threads_per_block),
            ("bytes of shared memory", shared, target.shared_per_block_static),
            ("accumulators a thread", tile.m * tile.n // tile.threads, target.registers_per_thread),
        ):
            if used > limit:
                raise TreadleError(
                    f"matmul_simt with {tile.m} x {tile.n} tiles takes {used} {what}, {used - limit} too many",
                    accepted=f"at most {limit} on {target.name}",
                )
        for operand, elements in (("A", tile.m * tile.depth), ("B", tile.depth * tile.n)):
            if elements % tile.threads:
                raise TreadleError(
                    f"matmul_simt: {operand}'s tile of {elements} elements is not shared out evenly "
                    f"by {tile.threads} threads, {elements % tile.threads} remain",
                    accepted="a tile whose elements are a multiple of the threads",
                )

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        return _MatmulBody(anchor, _Tile(choices)).build(name)


class _Tile:
    """The extents that a choice of knobs implies."""

    def __init__(self, choices: Choices):
        warps, repeats, thread = (choices[k] for k in ("warps", "repeats", "thread"))
        assert isinstance(warps, tuple) and isinstance(repeats, tuple) and isinstance(thread, tuple)
        depth = choices["depth"]
        assert isinstance(depth, int)
        self.depth = depth
        self.mapping: Mapping = spatial(*warps) * repeat(*repeats) * spatial(*_LANES) * repeat(*thread)
        self.m, self.n = self.mapping.shape
        self.threads = self.mapping.workers
        self.outputs = self.m * self.n // self.threads
        self.warps, self.repeats, self.thread = warps, repeats, thread
        self.a_order, self.b_order = choices["a_order"], choices["b_order"]


class _MatmulBody:
    """Writes the kernel of one product."""

    def __init__(self, anchor: MatmulOp, tile: _Tile):
        self.anchor, self.tile = anchor, tile
        self.m, self.n = anchor.shape[-2:]
        self.k = anchor.reduction_extent
        self.element = anchor.type.get_element_type()
        types = [t for t in (anchor.a.type, anchor.b.type) if isinstance(t, TensorType)]
        self.b = KernelBuilder(types, anchor.type)

    def build(self, name: str) -> KernelOp:
        b, tile = self.b, self.tile
        rows, columns = ceil(self.m / tile.m), ceil(self.n / tile.n)
        batch = self.anchor.shape[:-2]
        self.row = b.mul(b.mod(b.div(b.block, columns), rows), tile.m)
        self.column = b.mul(b.mod(b.block, columns), tile.n)
        self.batch_index = b.delinearize(b.div(b.block, rows * columns), batch) if batch else []
        # A is kept transposed, so that a thread's neighbouring rows lie next to one another.
        self.shared_a = b.alloc("shared_a", [2, tile.depth, tile.m + _PADDING], self.element, Space.SHARED)
        self.shared_b = b.alloc("shared_b", [2, tile.depth, tile.n + _PADDING], self.element, Space.SHARED)
        self.acc = b.alloc("acc", [tile.m * tile.n // tile.threads], self.element)
        with b.tasks(["e"], repeat(tile.outputs), unroll=True) as (e,):
            b.store(b.constant(0, self.element), self.acc, [e])
        self._pipeline(ceil(self.k / tile.depth))
        self._store()
        grid = rows * columns * prod(batch)
        comment = f"C[{self.m}, {self.n}] = A[{self.m}, {self.k}] * B[{self.k}, {self.n}]"
        return b.kernel(name, [self.anchor.a, self.anchor.b], self.anchor.type, grid, tile.threads, comment)

    def _pipeline(self, steps: int) -> None:
        """Figure 5: while one pair of tiles is multiplied, the next is on its way through registers."""
        b = self.b
        next_a, next_b = (b.alloc(f"next_{x}", [prod(self._loads(x).loops)], self.element) for x in ("a", "b"))
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

    def _loads(self, operand: str) -> Mapping:
        """The tasks of filling one tile: pairs of M and K, or of K and N, reversed where consecutive threads take
        elements along the first."""
        tile = self.tile
        rows, columns = (tile.m, tile.depth) if operand == "a" else (tile.depth, tile.n)
        if self._reversed(operand):
            rows, columns = columns, rows
        return _cooperative(rows, columns, tile.threads)

    def _reversed(self, operand: str) -> bool:
        return self.tile.a_order == "m" if operand == "a" else self.tile.b_order == "k"

    @contextmanager
    def _filling(self, operand: str) -> Generator[tuple[SSAValue, SSAValue, SSAValue]]:
        """A loop over the calling thread's elements of a tile: row, column, and the element's ordinal."""
        mapping, names = self._loads(operand), ["i", "k"] if operand == "a" else ["k", "j"]
        swap = self._reversed(operand)
        with self.b.tasks(names[::-1] if swap else names, mapping, self.b.thread, unroll=True) as (i, j):
            ordinal = _ordinal(self.b, mapping, i, j)
            yield (j, i, ordinal) if swap else (i, j, ordinal)

    def _fetch(self, step: SSAValue, next_a: SSAValue, next_b: SSAValue) -> None:
        """Global memory to registers: step's tiles of A and B, 0 beyond the matrices."""
        b, first = self.b, self.b.mul(step, self.tile.depth)
        with self._filling("a") as (i, k, ordinal):
            row, depth = b.add(self.row, i), b.add(first, k)
            value = self._guarded(0, row, self.m, self.tile.m, depth, self.k, self.tile.depth)
            b.store(value, next_a, [ordinal])
        with self._filling("b") as (k, j, ordinal):
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
        with self._filling("b") as (k, j, ordinal):
            b.store(b.load(next_b, [ordinal]), self.shared_b, [half, k, j])

    def _multiply(self, half: SSAValue) -> None:
        """One tile of A times one of B, added to the accumulators."""
        b, tile = self.b, self.tile
        rows = repeat(tile.repeats[0] * tile.thread[0])
        columns = repeat(tile.repeats[1] * tile.thread[1])
        regs_a = b.alloc("regs_a", [rows.shape[0]], self.element)
        regs_b = b.alloc("regs_b", [columns.shape[0]], self.element)
        with b.loop("k", tile.depth, unroll=True) as k:
            with b.tasks(["r"], rows, unroll=True) as (r,):
                b.store(b.load(self.shared_a, [half, k, self._line(0, r)]), regs_a, [r])
            with b.tasks(["c"], columns, unroll=True) as (c,):
                b.store(b.load(self.shared_b, [half, k, self._line(1, c)]), regs_b, [c])
            with b.tasks(["r", "c"], repeat(rows.shape[0], columns.shape[0]), unroll=True) as (r, c):
                e = b.add(b.mul(r, columns.shape[0]), c)
                product = b.mul(b.load(regs_a, [r]), b.load(regs_b, [c]))
                b.store(b.add(b.load(self.acc, [e]), product), self.acc, [e])

    def _line(self, axis: int, r: SSAValue) -> SSAValue:
        """The row or column of the block's tile that this thread's r-th one is."""
        b, tile = self.b, self.tile
        lane, warp = b.mod(b.thread, 32), b.div(b.thread, 32)
        mine = b.div(lane, _LANES[1]) if axis == 0 else b.mod(lane, _LANES[1])
        of_warp = b.div(warp, tile.warps[1]) if axis == 0 else b.mod(warp, tile.warps[1])
        thread = tile.thread[axis]
        outer = b.add(b.mul(of_warp, tile.repeats[axis]), b.div(r, thread))
        return b.add(b.mul(b.add(b.mul(outer, _LANES[axis]), mine), thread), b.mod(r, thread))

    def _store(self) -> None:
        b, tile = self.b, self.tile
        rows, columns = tile.repeats[0] * tile.thread[0], tile.repeats[1] * tile.thread[1]
        with b.tasks(["r", "c"], repeat(rows, columns), unroll=True) as (r, c):
            row, column = b.add(self.row, self._line(0, r)), b.add(self.column, self._line(1, c))
            inside = [b.binary("lt", row, self.m)] if self.m % tile.m else []
            inside += [b.binary("lt", column, self.n)] if self.n % tile.n else []
            value = b.load(self.acc, [b.add(b.mul(r, columns), c)])
            b.store(value, b.output, [*self.batch_index, row, column], b.all(inside))


def _contiguous(anchor: MatmulOp, operand: SSAValue) -> bool:
    """Whether an operand's elements along its last axis lie next to one another, those of a matrix that the group
    computes where the matrix that it is computed from is read."""
    producer = operand.owner
    if not isinstance(producer, ComputeOp) or producer.parent_op() is not anchor.parent_op():
        return True
    reads, index = producer.reads(), producer.body.block.args[-1]
    index_map = IndexMap(producer)
    return not reads or any(stride_along(index_map.position(at), index) == 1 for at in reads)


def _cooperative(rows: int, columns: int, threads: int) -> Mapping:
    """All threads together over a tile, consecutive threads on consecutive columns."""
    wide = min(columns, threads)
    high = threads // wide
    return repeat(ceil(rows / high), columns // wide) * spatial(high, wide)


def _ordinal(b: KernelBuilder, mapping: Mapping, i: SSAValue, j: SSAValue) -> SSAValue:
    """The place of task (i, j) in its worker's order."""
    outer, inner = mapping.loops
    high, wide = mapping.shape[0] // outer, mapping.shape[1] // inner
    return b.add(b.mul(b.div(i, high), inner), b.div(j, wide))
