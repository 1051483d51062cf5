"""The nest of a schedule program as a value: which levels there are, in what order, and what is kept in faster memory.

Source: the levels are those of MetaSchedule's multi-level tiling (NeurIPS 2022, appendix A.3), arranged as a
composition of Hidet's task mappings (ASPLOS 2023, section 5.1) with the reduction in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod

from treadle.dialects.loop.tiles import PRODUCT_K, WARP
from treadle.dialects.schedule.staging import Memory
from treadle.dialects.schedule.tiling import Role
from treadle.dialects.task import Mapping, repeat, spatial
from treadle.errors import TreadleError
from treadle.index.expr import Expr
from treadle.schedules.nest.box import (
    Box,
    Layout,
    MatrixRows,
    Moving,
    box_of,
    in_levels,
    layout_of,
    matrix_layout,
    matrix_rows,
)
from treadle.schedules.nest.workload import Workload
from treadle.schedules.template import check_limit
from treadle.schedules.tiles import FRAGMENT, PRODUCT_M, PRODUCT_N
from treadle.target import Target

# What a nest cannot be: stages of reads that have no box, and more than the hardware has.

MOST_ACCUMULATORS = 1024
"""Of a CPU's register tile, whose code is unrolled: twice the 512 floats of 32 vectors of 16, the largest register
file."""
MOST_UNROLLED_TERMS = 8192
"""Terms that unrolling writes out, on a CPU. GCC 12 compiled a product of bytes with 384 accumulators in 10 s with
16 terms of each, with 64 not in 60 s (one core of Zen 3 beside other jobs)."""
OTHER_REGISTERS = 16
"""Of a GPU's thread, for addresses and counters beside what a nest keeps. A lower bound, since it rejects: seven
products of f32 for sm_80 took 17 to 56 more than is counted here (NVRTC 13.0; 4096 and 2039 cubed with 64 accumulators
40 and 49, 1024 cubed with 16 accumulators 18)."""


def check_nest(nest: Nest, target: Target, where: str) -> None:
    """TreadleError for a nest that cannot be built, LimitError for one that the target has too little of."""
    _check_levels(nest, target, where)
    for stage in nest.stages:
        _check_stage(nest, stage, f"{where}, stage of read {stage.read}")
    _check_pairs(nest, where)
    if nest.product is not None:
        _check_product(nest, target, where)
    if target.is_cuda:
        _check_gpu(nest, target, where)
    else:
        lanes = prod(nest.levels[n].trips for n in nest.vector_reduction)
        check_limit("accumulators", nest.accumulators * lanes, MOST_ACCUMULATORS, where)
        check_limit("unrolled terms", nest.unrolled_terms, MOST_UNROLLED_TERMS, where)
        check_limit("bytes of stages", nest.staged_bytes("register"), target.l2_bytes, where)


def _check_levels(nest: Nest, target: Target, where: str) -> None:
    if nest.slices and not target.is_cuda:
        raise TreadleError("a reduction level is in block, and blocks of a CPU share no sums", where, "loop")
    if nest.vector_reduction and target.is_cuda:
        raise TreadleError("a reduction level is marked vector", where, "thread, whose lanes fold")


def _check_stage(nest: Nest, stage: Stage, where: str) -> None:
    workload = nest.workload
    if stage.read >= len(workload.reads):
        raise TreadleError("there is no such read", where, f"0 to {len(workload.reads) - 1}")
    read = workload.reads[stage.read]
    if read.obstacle is not None:
        raise TreadleError(f"the read {read.obstacle}", where, "a read of elements that its indices alone decide")
    at_block = stage.compute_at == len(nest.blocks)
    if not read.is_term and not at_block:
        raise TreadleError("the read is outside of the reduction", where, "a level in block")
    if nest.box(stage.read, stage.compute_at, stage.memory) is None:
        message = "an index is not something of the outer levels plus a linear form of the inner ones"
        raise TreadleError(message, where, "another level, or factors that divide the extents")
    if stage.memory == "register" and (stage.vector, stage.buffers) != (1, 1):
        raise TreadleError("vectors or buffers of a stage in registers", where, "one of each")
    if stage.buffers > 1 and at_block:
        raise TreadleError("nothing is ahead of a stage that is filled once a block", where, "one buffer")
    if stage.buffers > 2 and not stage.is_async:
        message = f"{stage.buffers} buffers, and registers hold what is fetched ahead for one"
        raise TreadleError(message, where, "2 buffers, or async")


def _check_pairs(nest: Nest, where: str) -> None:
    """Stages of one read go from slower to faster memory, and stages that are filled together have as many buffers."""
    for n, stage in enumerate(nest.stages):
        for inner in nest.stages[n + 1 :]:
            if inner.read == stage.read and (inner.compute_at == stage.compute_at or inner.memory == stage.memory):
                raise TreadleError(
                    f"read {stage.read} is staged twice at one level or in one memory",
                    where,
                    "shared at an outer level, register at an inner one",
                )
            if inner.read == stage.read and stage.memory == "register":
                raise TreadleError(
                    f"read {stage.read} goes from registers to shared memory", where, "shared at the outer level"
                )
            shared = stage.memory == inner.memory == "shared" and stage.compute_at == inner.compute_at
            if shared and (stage.buffers, stage.is_async) != (inner.buffers, inner.is_async):
                raise TreadleError(
                    f"reads {stage.read} and {inner.read} are staged at one level in {stage.buffers} and "
                    f"{inner.buffers} buffers, or one of them is async",
                    where,
                    "stages that are filled in one way",
                )


def _check_product(nest: Nest, target: Target, where: str) -> None:
    if not target.peak_f16_tensor:
        message = f"{target.name} has no tensor cores with the products of mma"
        raise TreadleError(message, where, "sm_80 and later architectures")
    if nest.factors is None:
        message = "the terms are no products of two reads, one of the rows of mma and one of its columns"
        raise TreadleError(message, where, "a sum of products of f16 or of bf16, or of f32 that allows tf32")
    reads, levels = nest.workload.reads, nest.levels
    row, column, k = nest.product_levels
    rows, columns, terms = levels[row].trips, levels[column].trips, levels[k].trips
    depth = PRODUCT_K[reads[nest.factors[0]].element]
    if (rows, terms) != (PRODUCT_M, depth) or columns not in (PRODUCT_N, 2 * PRODUCT_N):
        accepted = f"{PRODUCT_M} x {PRODUCT_N} x {depth}, or {PRODUCT_M} x {2 * PRODUCT_N} x {depth}"
        raise TreadleError(f"an mma of {rows} x {columns} x {terms}", where, accepted)
    if any(levels[n].axis.is_reduction for n in nest.numbers("thread")):
        raise TreadleError("a reduction level is in thread beside mma", where, "block or loop")
    for axis in nest.axes:
        whole = all(reads[n].ends_with(axis.first, axis.shape[0]) for n in nest.factors)
        if axis.is_reduction and nest.overhangs(axis) and not whole:
            message = f"levels of {nest.covered(axis)} terms, of which those beyond {axis.extent} are not 0"
            raise TreadleError(message, where, f"factors that divide {axis.extent}")
    for stage in nest.stages_in("shared"):
        if stage.read in nest.factors and nest.matrix_rows(stage) is None:
            message = f"no rows of whole 16 bytes for the matrices of mma in the stage of read {stage.read}"
            raise TreadleError(message, where, "tiles whose rows lie along a level of mma")


def check_staged(nest: Nest, where: str) -> None:
    """TreadleError unless what tensor cores multiply comes from shared memory."""
    for read in nest.unstaged:
        memories = " and ".join(stage.memory for stage in nest.stages if stage.read == read)
        message = f"read {read} of mma is staged in {memories or 'no faster memory'}"
        raise TreadleError(message, where, f'schedule.stage {read} in "shared", and in no registers')


def _check_gpu(nest: Nest, target: Target, where: str) -> None:
    if not target.copies_asynchronously and any(stage.is_async for stage in nest.stages):
        raise TreadleError(f"{target.name} has no asynchronous copies", where, "stages that are not async")
    check_limit("threads", nest.threads, target.max_threads_per_block, where)
    shared = nest.staged_bytes("shared") + nest.scratch_bytes
    most = target.shared_per_block_static if nest.product is None else target.shared_per_block
    check_limit("bytes of shared memory", shared, most, where)
    registers, least = registers_of(nest), nest.min_blocks_per_sm or 1
    check_limit("registers of a thread", registers, target.registers_per_thread, where)
    whole = registers * nest.threads * least
    check_limit("registers of a multiprocessor", whole, target.registers_per_multiprocessor, where)


def registers_of(nest: Nest) -> int:
    """An estimate of the registers of a GPU's thread: accumulators, fragments, stages, what is fetched ahead, and some
    more."""
    words = nest.accumulators * -(-nest.workload.accumulator_bytes // 4)
    staged = sum(-(-stage_bytes // 4) for stage_bytes in nest.stage_bytes("register"))
    ahead = [
        -(-size // (4 * nest.threads * stage.buffers))
        for stage, size in zip(nest.stages_in("shared"), nest.stage_bytes("shared"), strict=True)
        if stage.buffers > 1 and not stage.is_async
    ]
    return words + nest.fragment_registers + staged + sum(ahead) + OTHER_REGISTERS


def unrolled(nest: Nest, limit: int) -> Nest:
    """The nest with those of its innermost loops unrolled that have at most so many iterations together, and write out
    no more terms than `MOST_UNROLLED_TERMS`. The loop of a vector ends them, and one whose stages are filled ahead."""
    chosen, body, terms = set[int](), 1, nest.unrolled_terms
    for n in reversed(nest.numbers("loop")):
        level = nest.levels[n]
        is_ahead = any(stage.compute_at == n + 1 and stage.buffers > 1 for stage in nest.stages)
        body *= level.trips
        terms *= 1 if level.unroll else level.trips
        if level.vector or is_ahead or body > limit or terms > MOST_UNROLLED_TERMS:
            break
        chosen |= {n} if level.trips > 1 else set()
    numbers = iter(range(len(nest.levels)))
    groups = [
        replace(g, levels=tuple(replace(level, unroll=next(numbers) in chosen or level.unroll) for level in g.levels))
        for g in nest.groups
    ]
    return replace(nest, groups=tuple(groups))


@dataclass(frozen=True)
class Axis:
    """Neighbouring dimensions of an iteration space taken as one, row-major.

    first: the number of the first dimension; shape: their extents
    """

    first: int
    shape: tuple[int, ...]
    is_reduction: bool

    @cached_property
    def extent(self) -> int:
        """IterationPoint along the axis."""
        return prod(self.shape)

    @cached_property
    def dimensions(self) -> frozenset[int]:
        """Those of the iteration space."""
        return frozenset(range(self.first, self.first + len(self.shape)))


@dataclass(frozen=True)
class Level:
    """One level of an axis: `trips` iterations, each of which moves `stride` positions along the axis."""

    axis: Axis
    trips: int
    stride: int
    unroll: bool = False
    vector: bool = False


@dataclass(frozen=True)
class Group:
    """Levels of one role, outermost first."""

    role: Role
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class Stage:
    """A read goes through faster memory.

    read: its number in the workload; compute_at: the place (level of loops) where the copy is issued
    vector: elements that are copied at once, at most; buffers: copies of the memory, all but one of which are filled
        ahead; is_async: by asynchronous copies
    """

    read: int
    compute_at: int
    memory: Memory
    vector: int = 1
    buffers: int = 1
    is_async: bool = False


@dataclass(frozen=True)
class Swizzle:
    """Blocks go down `group` iterations of level `rows` before they go along the next level."""

    rows: int
    group: int


@dataclass(frozen=True)
class ThreadFold:
    """How threads fold the parts of an element that they share.

    levels, others: those of the threads that share one, and of the rest; parts: threads that share an element
    lanes: of the parts, how many are folded among the lanes of a warp; 1 where all are in shared memory
    """

    levels: tuple[int, ...]
    others: tuple[int, ...]
    parts: int
    lanes: int


@dataclass(frozen=True)
class Nest:
    """The whole nest, outermost first. Levels are numbered in that order, and a place is the number of the first level
    below it.

    stages: those of one read from the outermost in; swizzle: None for blocks in the order of the levels
    checks_borders: terms are computed where their indices exist, instead of from padded stages and clamped reads
    """

    workload: Workload
    groups: tuple[Group, ...]
    stages: tuple[Stage, ...] = ()
    min_blocks_per_sm: int | None = None
    swizzle: Swizzle | None = None
    checks_borders: bool = False

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """All levels."""
        return tuple(level for group in self.groups for level in group.levels)

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """The role of each level."""
        return tuple(group.role for group in self.groups for _ in group.levels)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, in the order of their dimensions."""
        return tuple(sorted({level.axis: None for level in self.levels}, key=lambda axis: axis.first))

    def numbers(self, role: Role) -> tuple[int, ...]:
        """The levels of a role."""
        return tuple(n for n, each in enumerate(self.roles) if each == role)

    @cached_property
    def blocks(self) -> tuple[Level, ...]:
        """The levels whose iterations are blocks of the grid."""
        return tuple(self.levels[n] for n in self.numbers("block"))

    @cached_property
    def grid(self) -> int:
        """Blocks."""
        return prod(level.trips for level in self.blocks)

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        workers = prod(self.levels[n].trips for n in self.numbers("thread"))
        return workers if self.product is None else workers * WARP

    @cached_property
    def product(self) -> tuple[int, int, int] | None:
        """The levels of the rows, columns and terms that a warp multiplies at once; None without tensor cores."""
        numbers = self.numbers("mma")
        return (numbers[0], numbers[1], numbers[2]) if numbers else None

    @property
    def product_levels(self) -> tuple[int, int, int]:
        """The same of a nest on tensor cores."""
        assert self.product is not None
        return self.product

    @cached_property
    def factors(self) -> tuple[int, int] | None:
        """The reads that tensor cores multiply, that of the rows first; None where the terms are not their product."""
        reads, pair = self.workload.reads, self.workload.factors
        if self.product is None or pair is None:
            return None
        rows, columns, _ = (self.levels[n].axis.dimensions for n in self.product)
        for left, right in (pair, pair[::-1]):
            a, b = reads[left].dims, reads[right].dims
            if a & rows and b & columns and not (a & columns or b & rows):
                return left, right
        return None

    @cached_property
    def unstaged(self) -> tuple[int, ...]:
        """The reads that tensor cores multiply, and that do not come from one stage, in shared memory."""
        memories = {read: [stage.memory for stage in self.stages if stage.read == read] for read in self.factors or ()}
        return tuple(read for read, each in memories.items() if each != ["shared"])

    def fragments(self, read: int) -> tuple[int, ...]:
        """The levels of the innermost tile along which fragments of an operand differ."""
        dims, last = self.workload.reads[read].dims, max(self.numbers("loop"), default=self.first_loop)
        inside = (n for n in self.tile if n > last or n in self.virtual)
        return tuple(n for n in inside if self.levels[n].trips > 1 and dims & self.levels[n].axis.dimensions)

    @cached_property
    def fragment_registers(self) -> int:
        """Registers of a thread that hold what tensor cores multiply: 4 for 16 rows, 2 for 8 columns."""
        if self.product is None or self.factors is None:
            return 0
        counts = [prod(self.levels[n].trips for n in self.fragments(read)) for read in self.factors]
        return 4 * counts[0] + 2 * self.levels[self.product[1]].trips // PRODUCT_N * counts[1]

    @cached_property
    def virtual(self) -> tuple[int, ...]:
        """The levels of virtual threads, which are repeated inside of all loops."""
        last = max(self.numbers("thread"), default=0)
        return tuple(n for n in self.numbers("repeat") if n < last)

    @cached_property
    def first_loop(self) -> int:
        """The place where the reduction begins: the first `loop`; behind the last level where there is none."""
        return next(iter(self.numbers("loop")), len(self.levels))

    @cached_property
    def tile(self) -> tuple[int, ...]:
        """The repeated levels inside of the reduction: a thread's accumulators."""
        return tuple(n for n in self.numbers("repeat") if n > self.first_loop or n in self.virtual)

    @cached_property
    def accumulators(self) -> int:
        """Of a thread."""
        tile = prod(self.levels[n].trips for n in self.tile)
        return tile if self.product is None else tile * PRODUCT_M * self.levels[self.product[1]].trips // WARP

    @cached_property
    def unrolled_terms(self) -> int:
        """Terms that unrolling writes out: those of the tile, for each iteration of the unrolled levels around it."""
        trips = (level.trips for n, level in enumerate(self.levels) if level.unroll and n not in self.tile)
        return self.accumulators * prod(trips)

    @cached_property
    def slices(self) -> tuple[int, ...]:
        """The levels of the reduction whose iterations are blocks: split-k."""
        return tuple(n for n in self.numbers("block") if self.levels[n].axis.is_reduction)

    @cached_property
    def tiles(self) -> tuple[int, ...]:
        """The other levels whose iterations are blocks."""
        return tuple(n for n in self.numbers("block") if n not in self.slices)

    @cached_property
    def vector_reduction(self) -> tuple[int, ...]:
        """The level of the reduction along which a vector runs, if one does."""
        return tuple(n for n, level in enumerate(self.levels) if level.vector and level.axis.is_reduction)

    @cached_property
    def thread_fold(self) -> ThreadFold | None:
        """How threads that share elements fold them; None where none do."""
        threads = [n for n in self.numbers("thread") if self.levels[n].trips > 1]
        shared = tuple(n for n in threads if self.levels[n].axis.is_reduction)
        if not shared:
            return None
        parts = prod(self.levels[n].trips for n in shared)
        lanes = gcd(parts, WARP)
        in_warps = shared == tuple(threads[-len(shared) :]) and self.threads % WARP == 0 and lanes in (parts, WARP)
        others = tuple(n for n in threads if n not in shared)
        return ThreadFold(shared, others, parts, lanes if in_warps and self.workload.lanes_fold else 1)

    @cached_property
    def scratch_bytes(self) -> int:
        """Shared memory in which threads fold what they share."""
        fold = self.thread_fold
        if fold is None or fold.lanes == fold.parts:
            return 0
        return self.threads // fold.lanes * self.accumulators * self.workload.accumulator_bytes

    def below(self, place: int) -> tuple[int, ...]:
        """IterationPoint of each axis that the levels below a place reach."""
        inside = self.levels[place:]
        return tuple(prod(level.trips for level in inside if level.axis == axis) for axis in self.axes)

    def covered(self, axis: Axis) -> int:
        """IterationPoint of an axis that the levels reach; more than the extent where tiles overhang."""
        return prod(level.trips for level in self.levels if level.axis == axis)

    def overhangs(self, axis: Axis) -> bool:
        """Whether some positions that the levels reach lie beyond the end."""
        return self.covered(axis) != axis.extent

    def masks(self, axis: Axis) -> bool:
        """Whether reads beyond the end of an axis are masked, and not clamped to its last position: along vectors,
        threads and the lanes of a warp, clamped indices would not be consecutive."""
        return any(
            level.axis == axis and (level.vector or role in ("thread", "mma"))
            for level, role in zip(self.levels, self.roles, strict=True)
        )

    @cached_property
    def mapping(self) -> Mapping:
        """What each thread of a block does, as a task mapping over the axes."""
        parts = [self._part(n) for n, role in enumerate(self.roles) if role not in ("block", "mma")]
        parts += self._parts_of_product()
        whole = parts[0] if parts else repeat(*(1 for _ in self.axes))
        for part in parts[1:]:
            whole = whole * part
        return whole

    def _part(self, number: int) -> Mapping:
        level = self.levels[number]
        sizes = (level.trips if axis == level.axis else 1 for axis in self.axes)
        return spatial(*sizes) if self.roles[number] == "thread" else repeat(*sizes)

    def _parts_of_product(self) -> list[Mapping]:
        """What the lanes of a warp do of a product of tensor cores: fragments of its rows and columns."""
        if self.product is None:
            return []
        row, column, k = (self.levels[n] for n in self.product)

        def over(shape: Sequence[int], terms: int = 1) -> list[int]:
            sizes = {row.axis: shape[0], column.axis: shape[1], k.axis: terms}
            return [sizes.get(axis, 1) for axis in self.axes]

        whole = repeat(*over((1, column.trips // PRODUCT_N), k.trips))
        return [whole, *((spatial if part.workers > 1 else repeat)(*over(part.shape)) for part in FRAGMENT.parts)]

    def moving(self, place: int, memory: Memory) -> tuple[int, ...]:
        """The levels that move inside of what is staged at a place: those below it and virtual threads, and for shared
        memory all threads."""
        found = (
            n
            for n, role in enumerate(self.roles)
            if (role == "thread" and memory == "shared") or (role in ("loop", "repeat", "mma") and n >= place)
        )
        return tuple(sorted({*found, *self.virtual}))

    def box(self, read: int, place: int, memory: Memory = "register") -> Box | None:
        """What a read reaches below a place; None where that is no box at a position that the levels above give."""
        return box_of(self.workload.reads[read], self._moving, self.moving(place, memory))

    def indices(self, read: int) -> tuple[Expr, ...]:
        """The indices of a read, in the iterations of the levels: those of level n count in variable `("level", n)`."""
        return self._indices[read]

    @cached_property
    def _indices(self) -> list[tuple[Expr, ...]]:
        return [in_levels(read, self._moving) for read in self.workload.reads]

    def layout(self, stage: Stage) -> Layout:
        """How what a stage holds lies in its memory. Levels inside of the reduction are the inner ones; vectors, and
        what threads and the register tile run along, are further inside than loops."""
        return self._layouts[stage]

    @cached_property
    def _layouts(self) -> dict[Stage, Layout]:
        return {stage: self._layout(stage) for stage in self.stages}

    def _layout(self, stage: Stage) -> Layout:
        box = self.box(stage.read, stage.compute_at, stage.memory)
        assert box is not None, "checked when the program was replayed"
        matrices = self.matrix_rows(stage)
        if matrices is not None:
            own, k = self._operand(stage.read)
            return matrix_layout(box, matrices, own, k, self.workload.reads[stage.read].bytes)
        count = len(self.levels)
        inner = [n + count * (role != "loop") for n, role in enumerate(self.roles)]
        ranks = [2 * count + n if self.levels[n].vector else rank for n, rank in enumerate(inner)]
        read = self.workload.reads[stage.read]
        return layout_of(box, ranks, read.order, read.bytes if stage.memory == "shared" else None)

    def matrix_rows(self, stage: Stage) -> MatrixRows | None:
        """The rows in which a stage holds an operand of tensor cores; None for another stage, or if there are none."""
        box = self.box(stage.read, stage.compute_at, stage.memory)
        if self.factors is None or stage.read not in self.factors or stage.memory != "shared" or box is None:
            return None
        read = self.workload.reads[stage.read]
        return matrix_rows(box, read.order, *self._operand(stage.read), read.bytes)

    def _operand(self, read: int) -> tuple[int, int]:
        """The levels of the rows, or columns, and of the terms of an operand of tensor cores."""
        row, column, k = self.product_levels
        assert self.factors is not None
        return row if read == self.factors[0] else column, k

    def stages_in(self, memory: Memory) -> tuple[Stage, ...]:
        """The stages in one memory."""
        return tuple(stage for stage in self.stages if stage.memory == memory)

    def stage_bytes(self, memory: Memory) -> tuple[int, ...]:
        """What each stage in a memory takes, with all its buffers: of a thread or, of shared memory, of a block."""
        return tuple(
            self.layout(stage).elements * stage.buffers * self.workload.reads[stage.read].bytes
            for stage in self.stages_in(memory)
        )

    def staged_bytes(self, memory: Memory) -> int:
        """What all stages in a memory take."""
        return sum(self.stage_bytes(memory))

    @cached_property
    def _moving(self) -> dict[int, Moving]:
        found = enumerate(self.levels)
        return {n: Moving(level.axis.first, level.axis.shape, level.trips, level.stride) for n, level in found}
