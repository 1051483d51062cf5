"""Warpgroups with roles: what kernels for compute capability 9.0 are written with, beside `tiles`.

One thread of the first warpgroup, the producer, fills stages of tiles in shared memory by copies of boxes; the other
warpgroups, the consumers, multiply them, 64 rows each at a time. Both go over the same steps, and a `Pipe` keeps them
from overtaking one another: barriers that count the bytes that have come, and the warps that are done.

Source: NVIDIA, CUTLASS documentation, "Efficient GEMM in CUDA", warp specialization; PTX ISA 9.0, "Asynchronous
Warpgroup Level Matrix Multiply-Accumulate Instructions".
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, gcd

from xdsl.dialects.builtin import VectorType, i1
from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.hopper import (
    BulkWaitOp,
    MbarrierArriveOp,
    MbarrierFenceOp,
    MbarrierInitOp,
    MbarrierType,
    MbarrierWaitOp,
    RegistersOp,
    UniformOp,
    WgmmaCommitOp,
    WgmmaFenceOp,
    WgmmaOp,
    WgmmaRegistersOp,
    WgmmaSumsOp,
    WgmmaWaitOp,
)
from treadle.dialects.loop import Space, swizzle_of_rows, type_of
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, KernelBuilder, Predicate, narrowed
from treadle.schedules.tiles import COLUMNS, HALVES, PAIR, PRODUCT_M, Fragment, Region, TileBuilder
from treadle.target import Target

WARPGROUP, WARPS, SLAB = 128, 4, 64
"""Threads of a warpgroup, its warps, and rows that it multiplies at a time."""
SPAN = 128
"""Bytes of a row of a tile: the longest that swizzles permute."""
REGISTERS = {1: None, 2: (40, 232), 3: (32, 160)}
"""Of a thread of the producer and of the consumers, by the number of these: all that a multiprocessor has. One consumer
needs none of the producer's."""


def without_warpgroups(target: Target) -> str:
    """Why a target of compute capability 9.0 has no kernels of warpgroups."""
    return f"{target.name} has no products of warpgroups: sm_90a has them, and every device of {target.name}"


TERM_BYTES = 32
"""Along the terms, of one product."""
FRAGMENT_TERMS = 16
"""Of a product whose operand A, of 16 bits, is in registers."""


@dataclass(frozen=True)
class OperandTile:
    """How an operand of a product lies in shared memory: rows of 128 bytes, swizzled by as many.

    own: rows of A, columns of B; terms: of a step
    along_k: whether rows run along the terms, in parts of 128 bytes of these, each of the operand's own extent; else
    they run across them, in parts of 128 bytes of the operand's own extent, each of all terms
    """

    own: int
    terms: int
    element_bytes: int
    along_k: bool

    @property
    def row(self) -> int:
        """Elements of a row."""
        return SPAN // self.element_bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one stage in shared memory: parts, rows of a part, elements of a row."""
        across, rows = (self.terms, self.own) if self.along_k else (self.own, self.terms)
        return across // self.row, rows, self.row

    @property
    def bytes(self) -> int:
        """Of one stage."""
        return self.own * self.terms * self.element_bytes


@dataclass(frozen=True)
class Operand:
    """Stages of an operand's tile."""

    buffer: SSAValue
    tile: OperandTile

    def start(self, stage: Index, own: Index | int, term: int) -> list[Index | int]:
        """Where a product begins that reads from a row or column, a multiple of 64, and a term on."""
        row = self.tile.row
        return [stage, term // row, own, term % row] if self.tile.along_k else [stage, own // row, term, 0]


@dataclass(frozen=True)
class Matrix:
    """An operand of a convolution, of which a step brings channels of one position in the window, from one on: beyond
    its own rows, or columns, and beyond the channels there are zeros."""

    rows: int
    channel: Index
    channels: int


@dataclass(frozen=True)
class Pipe:
    """Stages that the producer fills and consumers empty, step after step of the whole kernel.

    full, empty: a barrier of each stage; bytes: that a step brings
    """

    b: KernelBuilder
    full: SSAValue
    empty: SSAValue
    stages: int
    bytes: int

    def stage(self, step: Index) -> Index:
        """The stage of a step."""
        return step % self.stages

    def acquire(self, step: Index) -> Index:
        """The producer's: waits until the step's stage is empty, and says what will fill it."""
        stage = self.stage(step)
        # The phase before the first one counts as over.
        self._wait(self.empty, stage, (step // self.stages + 1) % 2)
        self.b.perform(MbarrierArriveOp(self.full, stage.value, self.bytes))
        return stage

    def wait(self, step: Index) -> Index:
        """A consumer's: waits until the step's stage is full."""
        stage = self.stage(step)
        self._wait(self.full, stage, (step // self.stages) % 2)
        return stage

    def release(self, stage: Index, lane: Index) -> None:
        """A consumer's: its warp has read a stage."""
        with self.b.when(lane.equals(0)):
            self.b.perform(MbarrierArriveOp(self.empty, stage.value))

    def before(self, stage: Index) -> Index:
        """The stage of the step before."""
        return (stage > 0).select(stage - 1, self.b.index(self.stages - 1))

    def _wait(self, barrier: SSAValue, stage: Index, parity: Index) -> None:
        self.b.perform(MbarrierWaitOp(barrier, stage.value, parity.value))


class WarpgroupBuilder:
    """Writes a kernel of one producer and some consumers.

    moves_registers: whether the producer leaves registers to the consumers
    role: of the calling thread's warpgroup, 0 for the producer; the same for all of a warp, and known to be
    """

    def __init__(self, b: KernelBuilder, consumers: int, *, moves_registers: bool = True):
        self.b, self.consumers = b, consumers
        self._registers = REGISTERS[consumers] if moves_registers else None
        self.threads = WARPGROUP * (1 + consumers)
        role = b.insert(UniformOp((b.thread // WARPGROUP).value, 1 + consumers))
        role.name_hint = "role"
        self.role = Index(role, b)

    def operand(self, name: str, tile: OperandTile, element: Attribute, stages: int) -> Operand:
        """Stages of an operand's tile in shared memory."""
        swizzle = swizzle_of_rows(SPAN, tile.element_bytes)
        return Operand(self.b.alloc(name, [stages, *tile.shape], element, Space.SHARED, swizzle), tile)

    def pipe(self, stages: int, bytes: int, prefix: str = "", consumers: int | None = None) -> Pipe:
        """Barriers of some stages, made and published by one thread. All threads reach it.

        consumers: that read a stage; all of them unless given
        """
        b, arrivals = self.b, WARPS * (self.consumers if consumers is None else consumers)
        full, empty = (b.alloc(prefix + name, [stages], MbarrierType(), Space.SHARED) for name in ("full", "empty"))
        with b.when(b.thread.equals(0)):
            with b.loop("s", stages) as s:
                b.perform(MbarrierInitOp(full, s.value, 1))
                b.perform(MbarrierInitOp(empty, s.value, arrivals))
            b.perform(MbarrierFenceOp())
        b.barrier()
        return Pipe(b, full, empty, stages, bytes)

    @contextmanager
    def producer(self) -> Generator[None]:
        """Inside is what one thread does, which starts all copies."""
        b, registers = self.b, self._registers
        with b.when(self.role.equals(0)):
            if registers is not None:
                b.perform(RegistersOp(registers[0], increase=False))
            with b.when(b.thread.equals(0)):
                yield

    @contextmanager
    def consumer(self) -> Generator[Consumer]:
        """Inside is what each of the consumers does."""
        b, registers = self.b, self._registers
        with b.when(self.role > 0):
            if registers is not None:
                b.perform(RegistersOp(registers[1], increase=True))
            yield Consumer(self)

    @contextmanager
    def tiles(self, total: int, blocks: int) -> Generator[tuple[Index, Index]]:
        """The tiles of the calling block, which takes every `blocks`-th: how many it had before, and the number."""
        b, rounds = self.b, ceil(total / blocks)
        with b.loop("n", rounds) as n:
            tile = b.block + n * blocks
            with b.when(tile < total if total % blocks else None):
                yield n, tile

    def copy(self, source: Region, target: Operand, stage: Index, pipe: Pipe, matrix: Matrix | None = None) -> None:
        """Starts copies of a step's part of an operand, whose rows are the operand's own, to a stage."""
        b, tile, barrier = self.b, target.tile, (pipe.full, stage)
        parts, rows, row = tile.shape
        for number in range(parts):
            place = [stage, b.index(number), b.index(0), b.index(0)]
            first = number * row
            if matrix is None:
                b.bulk_copy((target.buffer, place), barrier, (rows, row), _elements(source, tile, first))
                continue
            assert first == 0 or not tile.along_k, "a step has one row of channels"
            here = _below(source, first)
            own = here.first[1 if here.is_transposed else 0]
            origin, ends = [own.value, matrix.channel.value], [matrix.rows, matrix.channels]
            order = slice(None) if tile.along_k else slice(None, None, -1)
            part = origin[order], ends[order]
            b.bulk_copy((target.buffer, place), barrier, (rows, row), _elements(here, tile, 0), part)


def _below(source: Region, rows: int) -> Region:
    """A region from so many of its rows on."""
    row, column = source.first
    if rows == 0:
        return source
    return replace(source, first=(row, column + rows) if source.is_transposed else (row + rows, column))


def _elements(source: Region, tile: OperandTile, first: int) -> Callable[[Sequence[Index]], Scalar]:
    """Those of a part of a tile whose rows begin at an element of the tile's."""

    def element(at: Sequence[Index]) -> Scalar:
        along_row = at[1] + first
        return source.load(at[0], along_row) if tile.along_k else source.load(along_row, at[0])

    return element


class Consumer(TileBuilder):
    """Writes tiles of one warpgroup that multiplies.

    number: among the consumers; warp: among the warps of all consumers; own_warp: among those of the warpgroup
    """

    def __init__(self, warpgroups: WarpgroupBuilder):
        super().__init__(warpgroups.b, WARPGROUP * warpgroups.consumers)
        self.number = warpgroups.role - 1
        self.own_warp = self.warp % WARPS
        self.warp = self.number * WARPS + self.own_warp

    def sums(self, name: str, element: Attribute, rows: int, columns: int) -> Fragment:
        """Registers for the consumer's rows of a tile, of which each consumer has as many; undefined at first."""
        b, type = self.b, VectorType(element, [HALVES, 2])
        registers = b.alloc(name, [rows // SLAB, columns // COLUMNS, PAIR], type)
        first = self.number * rows + self.own_warp * PRODUCT_M
        return Fragment(b, self.lane, registers, type, rows * PRODUCT_M // SLAB, columns, (first, 0), SLAB)

    def multiply(self, a: Operand, b: Operand, c: Fragment, stage: Index, more: Index) -> None:
        """Starts the products of a step, as one group: c = a * b where `more` is 0, else c += a * b."""
        self.begin()
        first_row = self.number * (c.shape[0] * SLAB)
        self.products((a, stage, first_row), (b, stage), c, a.tile.terms, more > 0)
        self.end()

    def multiply_steps(
        self,
        a: Operand,
        b: Operand,
        c: Fragment,
        pipe: Pipe,
        first: Index,
        steps: Index | int,
        apart: tuple[Fragment, int] | None = None,
    ) -> None:
        """c = a * b over some steps of a pipe from the first one on; their stages are released but for the last one's.

        A step's products run while those of the step after it are started; with `apart`, registers and a number of
        terms, as `multiply_apart` adds them.
        """
        k = self.b
        if apart is not None:
            c.clear()
        with k.loop("step", steps) as step:
            stage = pipe.wait(first + step)
            if apart is None:
                self.multiply(a, b, c, stage, step)
            else:
                self.multiply_apart(a, b, (c, apart[0]), stage, apart[1])
            self.finish(1)
            # The products of the step before are over.
            with k.when(step > 0):
                pipe.release(pipe.before(stage), self.lane)
        self.finish(0, c)

    def multiply_apart(self, a: Operand, b: Operand, sums: tuple[Fragment, Fragment], stage: Index, terms: int) -> None:
        """Adds the products of a step to sums in f32: tensor cores carry those of so many terms alone.

        sums: of the step, and the registers for those of tensor cores, of 64 rows
        """
        k, (c, part) = self.b, sums
        first_row = self.number * (c.shape[0] * SLAB)
        for slab in range(c.shape[0]):
            for first in range(0, a.tile.terms, terms):
                self.begin()
                self.products((a, stage, first_row + slab * SLAB), (b, stage), part, terms, keep=False, first=first)
                self.end()
                self.finish(0, part)
                with k.tasks(["p", "q"], repeat(*c.shape[1:]), unroll=True) as (p, q):
                    added = k.alloc("added", c.type.get_shape(), c.type.element_type)
                    with k.tasks(["h", "c"], repeat(HALVES, 2), unroll=True) as (h, e):
                        total = k.add(c.load(k.index(slab), p, q, h, e), part.load(k.index(0), p, q, h, e))
                        k.store(total, added, [h, e])
                    k.store(k.load_vector(added, c.type), c.registers, [slab, p, q])

    def begin(self) -> None:
        """What the products that follow read in registers has been written."""
        self.b.perform(WgmmaFenceOp())

    def end(self) -> None:
        """Ends a group of products."""
        self.b.perform(WgmmaCommitOp())

    def products(
        self,
        a: tuple[Operand, Index, Index | int],
        b: tuple[Operand, Index],
        c: Fragment,
        terms: int,
        keep: Predicate | bool,
        first: int = 0,
    ) -> None:
        """Starts c += a * b, or c = a * b where `keep` does not hold.

        a: the operand, its stage, and the consumer's first row; b: the operand and its stage
        first: of the terms of the stage, of which there are `terms`
        """
        k, (left, stage, first_row), across = self.b, a, (not a[0].tile.along_k, not b[0].tile.along_k)
        each = TERM_BYTES // left.tile.element_bytes
        for term in range(0, terms, each):
            for slab in range(c.shape[0]):
                of_a = self._at(left, stage, first_row + slab * SLAB, first + term)
                of_b, sums = self._at(*b, 0, first + term), (c.registers, [k.index(slab).value])
                k.perform(WgmmaOp(of_a, of_b, sums, self._keep(keep, term), across=across))

    def products_of_registers(self, a: SSAValue, b: tuple[Operand, Index], c: Fragment, keep: Predicate | bool) -> None:
        """The same of 64 rows, with A in registers: `[terms / 16]` fragments."""
        k, across = self.b, not b[0].tile.along_k
        (count,) = type_of(a).get_shape()
        for n in range(count):
            of_b, sums = self._at(*b, 0, n * FRAGMENT_TERMS), (c.registers, [k.index(0).value])
            k.perform(WgmmaRegistersOp(k.load(a, [n]), of_b, sums, self._keep(keep, n), across=across))

    def finish(self, pending: int, *sums: Fragment) -> None:
        """Waits until at most so many of the newest groups of products are under way; sums: those that may be read."""
        self.b.perform(WgmmaWaitOp(pending))
        for each in sums:
            for slab in range(each.shape[0]):
                self.b.perform(WgmmaSumsOp(each.registers, [self.b.index(slab).value]))

    def _keep(self, keep: Predicate | bool, term: int) -> SSAValue | None:
        """Whether a product adds to the sums: all but the first do."""
        if term > 0 or keep is True:
            return None
        return keep.value if isinstance(keep, Predicate) else self.b.constant(0, i1)

    def store_pieces(self, c: Fragment, target: Region, pieces: int, before: Index) -> None:
        """Writes a fragment to a matrix, a warp 16 rows of at most 128 bytes at a time, of which so many may be under
        way; before: how many fragments the warp wrote. `drain` comes before the kernel's end."""
        b, width = self.b, gcd(c.columns, SPAN // byte_width(target.element))
        each = c.shape[0] * (c.columns // width)
        with b.loop("r", c.shape[0], unroll=True) as r:
            for piece in range(c.columns // width):
                number = (before * each + r * (c.columns // width) + piece) % pieces if pieces > 1 else 0
                left = piece * width
                with (
                    b.bulk_store(self.warp, self.threads // WARP, number, pieces),
                    self._lane_elements(width) as (i, j),
                ):
                    value = narrowed(b, c.at(r, i, j + left), target.element)
                    target.store(value, c.first[0] + (r * c.row_step + i), c.first[1] + (j + left))

    def drain(self) -> None:
        """Waits for the stores that are under way."""
        self.b.perform(BulkWaitOp(0))

    def _at(self, operand: Operand, stage: Index, own: Index | int, term: int) -> tuple[SSAValue, Sequence[SSAValue]]:
        return operand.buffer, [self.b.index(each).value for each in operand.start(stage, own, term)]


__all__ = [
    "REGISTERS", "SLAB", "SPAN", "TERM_BYTES", "WARPGROUP", "Consumer", "Operand", "OperandTile", "Pipe",
    "WarpgroupBuilder", "without_warpgroups",
]  # fmt: skip
