"""Writes the copies of reads to faster memory: by each thread to its registers, or by a block to its shared memory.

Local padding (DietCode, MLSys 2022, section 3.3): beyond a tensor's end a stage holds 0, so that what reads it needs no
predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, gcd, prod

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.loop import Space
from treadle.dialects.loop.tiles import SECTOR_BYTES
from treadle.dialects.task import Mapping as TaskMapping
from treadle.dialects.task import repeat, spatial
from treadle.schedules.kernel_builder import Index, KernelBuilder, Predicate, all_of
from treadle.schedules.nest.box import Layout, StagedBuffer
from treadle.schedules.nest.nest import Nest, Stage
from treadle.schedules.nest.scope import At, Body
from treadle.schedules.nest.workload import Condition
from treadle.schedules.pipelines import pipelined, prefetched

# How the threads of a block fill a stage together: consecutive threads take consecutive memory, vectors innermost.


@dataclass(frozen=True)
class CooperativeCopy:
    """A stage's elements in the order in which they are copied, `vector` of them at once.

    digits: the dimensions of the box (levels that stand apart first, then those of the tensor), each with an extent and
        the places between neighbours, outermost first; the last one's neighbours are neighbours in memory
    """

    digits: tuple[tuple[int, int, int], ...]
    rank: int
    vector: int

    @property
    def vectors(self) -> int:
        """All of them."""
        return prod(extent for _, extent, _ in self.digits) // self.vector

    def mapping(self, threads: int) -> TaskMapping:
        """Which vectors a thread copies; where the threads do not divide them, the last ones of some do not exist."""
        return repeat(ceil(self.vectors / threads)) * spatial(threads)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents that a vector's number is made of."""
        *outer, last = (extent for _, extent, _ in self.digits)
        return (*outer, last // self.vector)

    def place(self, parts: Sequence[Index], element: Index) -> list[Index]:
        """The place of an element of a vector, whose number's digits are given."""
        found: dict[int, Index] = {}
        for n, ((dim, _, step), part) in enumerate(zip(self.digits, parts, strict=True)):
            where = (part * self.vector + element if n == len(parts) - 1 else part) * step
            found[dim] = found[dim] + where if dim in found else where
        return [found[dim] for dim in range(self.rank)]


def filling_of(
    layout: Layout, nearest: Sequence[int], element_bytes: int, vector: int, *, is_async: bool
) -> CooperativeCopy:
    """The filling of a stage whose tensor has its nearest neighbours along the last of the dimensions `nearest`.

    Asynchronous copies move vectors to neighbours, so that across the rows of a stage they move single elements.
    Where rows of the stage lie across these, only as many as a sector holds are taken at once: the lanes of a warp then
    store to more rows of the stage's.
    """
    box, apart = layout.box, len(layout.box.apart)
    outer = [(n, extent, 1) for n, extent in enumerate(box.apart.values())]
    line = next((dim for dim in reversed(nearest) if box.extents[dim] > 1), nearest[-1])
    middle = [(apart + dim, box.extents[dim], 1) for dim in nearest if dim != line]
    extent, sector = box.extents[line], SECTOR_BYTES // element_bytes
    across = line != layout.order[-1]
    in_sectors = across and extent % sector == 0
    chunks = [(apart + line, extent // sector, sector)] if in_sectors else []
    last = apart + line, sector if in_sectors else extent, 1
    rank = apart + len(box.extents)
    return CooperativeCopy((*outer, *chunks, *middle, last), rank, 1 if across and is_async else gcd(vector, last[1]))


# Loops whose every iteration fills shared memory: at once, fetched one iteration ahead, or copied several ahead.

_Body = Callable[[At], None]


class Pipeline:
    """Writes one loop over a level and what its stages need around the body."""

    def __init__(
        self,
        b: KernelBuilder,
        nest: Nest,
        stager: Stager,
        name: Callable[[int], str],
        trips: Callable[[int, At], Index | int],
    ):
        self._b, self._nest, self._stager, self._name, self._trips = b, nest, stager, name, trips

    def loop(self, number: int, at: At, body: _Body) -> None:
        """All iterations of a level, with its stages filled for each."""
        stages = [stage for stage in self._nest.stages_in("shared") if stage.compute_at == number + 1]
        if not stages:
            self._plain(number, at, lambda here: self._with_registers(number, here, body))
        elif stages[0].buffers == 1:
            self._plain(number, at, lambda here: self._filled(stages, number, here, body))
        elif stages[0].is_async:
            self._copied_ahead(stages, number, at, body)
        else:
            self._fetched_ahead(stages, number, at, body)

    def _plain(self, number: int, at: At, body: _Body) -> None:
        level = self._nest.levels[number]
        if level.trips == 1:
            body(at)
            return
        trips = self._trips(number, at)
        with self._b.loop(self._name(number), trips, unroll=level.unroll, vector=level.vector) as index:
            body({**at, number: index})

    def _with_registers(self, number: int, at: At, body: _Body) -> None:
        with self._stager.in_registers(number + 1, at):
            body(at)

    def _filled(self, stages: Sequence[Stage], number: int, at: At, body: _Body) -> None:
        """One buffer: all threads have read the last iteration's before it is filled, and wait until it is."""
        self._b.barrier()
        self._stager.copy(stages, at)
        self._b.barrier()
        with self._stager.holding(stages):
            self._with_registers(number, at, body)

    def _fetched_ahead(self, stages: Sequence[Stage], number: int, at: At, body: _Body) -> None:
        """Two buffers: the next iteration's elements are loaded to registers before the body, and stored behind it."""
        prefetched(
            self._b,
            self._name(number),
            self._trips(number, at),
            lambda step: self._stager.fetch(stages, self._here(number, at, step)),
            lambda half: self._stager.keep(stages, half),
            lambda step, half: self._held(stages, number, self._here(number, at, step), half, body),
            lambda: self._after_readers(at),
        )

    def _copied_ahead(self, stages: Sequence[Stage], number: int, at: At, body: _Body) -> None:
        """Several buffers: one is used while asynchronous copies fill the others."""
        steps = self._trips(number, at)
        self._after_readers(at)
        pipelined(
            self._b,
            self._name(number),
            steps,
            stages[0].buffers,
            lambda step, half: self._stager.start(stages, self._here(number, at, step), half),
            lambda step, half: self._held(stages, number, self._here(number, at, step), half, body),
        )

    def _held(self, stages: Sequence[Stage], number: int, at: At, half: Index, body: _Body) -> None:
        with self._stager.holding(stages, half):
            self._with_registers(number, at, body)

    def _here(self, number: int, at: At, index: Index) -> At:
        return {**at, number: index} if self._nest.levels[number].trips > 1 else at

    def _after_readers(self, at: At) -> None:
        """Inside of another loop, the last iteration's readers come first."""
        if any(self._nest.roles[n] in ("loop", "repeat") for n in at):
            self._b.barrier()


_Element = Callable[[Mapping[int, Index], Sequence[Index]], Scalar]
"""What belongs at a place of a box, given where the levels that stand apart in it are."""


class Stager:
    """Fills the stages of one nest. Shared memory is allocated at once, registers where they are filled.

    is_gpu: registers are filled by unrolled code, not by vectors
    """

    def __init__(self, b: KernelBuilder, compute: ComputeOp, nest: Nest, body: Body, *, is_gpu: bool):
        self._b, self._nest, self._body, self._is_gpu = b, nest, body, is_gpu
        self._reads = compute.reads()
        # A last input that the definition does not read is where its terms end.
        self._buffers = dict(zip(compute.tensors(), b.inputs, strict=False))
        self._layouts = {stage: nest.layout(stage) for stage in nest.stages}
        self._shared = {stage: self._alloc_shared(stage) for stage in nest.stages_in("shared")}
        self._ahead = {stage: self._alloc_ahead(stage) for stage in self._shared if _is_fetched_ahead(stage)}

    @contextmanager
    def holding(self, stages: Sequence[Stage], half: Index | None = None) -> Generator[None]:
        """Reads of these stages go to shared memory inside; `half`: to which of its buffers."""
        before = dict(self._body.held)
        self._body.held |= {
            stage.read: StagedBuffer(self._layouts[stage], self._shared[stage], half) for stage in stages
        }
        yield
        self._body.held = before

    @contextmanager
    def in_registers(self, place: int, at: At) -> Generator[None]:
        """Fills the stages in registers that stand at a place; they are read inside."""
        before = dict(self._body.held)
        for stage in self._nest.stages_in("register"):
            if stage.compute_at == place:
                self._body.held[stage.read] = self._fill_registers(stage, at)
        yield
        self._body.held = before

    def copy(self, stages: Sequence[Stage], at: At) -> None:
        """All threads fill shared memory."""
        b = self._b
        for stage in stages:
            element, held = self._element(stage, at), StagedBuffer(self._layouts[stage], self._shared[stage])
            with self._each(stage) as (apart, place, _):
                b.store(element(apart, place), held.buffer, held.address(b, apart, place))

    def fetch(self, stages: Sequence[Stage], at: At) -> None:
        """All threads load what they will `keep`."""
        for stage in stages:
            element = self._element(stage, at)
            with self._each(stage) as (apart, place, number):
                self._b.store(element(apart, place), self._ahead[stage], number)

    def keep(self, stages: Sequence[Stage], half: Index) -> None:
        """All threads store what they fetched."""
        b = self._b
        for stage in stages:
            held = StagedBuffer(self._layouts[stage], self._shared[stage], half)
            with self._each(stage) as (apart, place, number):
                b.store(b.load(self._ahead[stage], number), held.buffer, held.address(b, apart, place))

    def start(self, stages: Sequence[Stage], at: At, half: Index) -> None:
        """All threads start asynchronous copies."""
        for stage in stages:
            held = StagedBuffer(self._layouts[stage], self._shared[stage], half)
            with self._vectors(stage) as (filling, c):
                self._start(held, filling, c, self._element(stage, at))

    def _start(self, held: StagedBuffer, filling: CooperativeCopy, c: Index, element: _Element) -> None:
        """One vector, which is one element where neighbours are none in shared memory."""
        b, layout, row = self._b, held.layout, held.layout.order[-1]
        apart, place = _split(layout, filling.place(c.delinearize(filling.shape), b.index(0)))

        def value(e: Index) -> Scalar:
            return element(apart, [p + e if dim == row else p for dim, p in enumerate(place)])

        b.copy(held.buffer, held.address(b, apart, place), filling.vector, value)

    def _alloc_shared(self, stage: Stage) -> SSAValue:
        halves, layout = [stage.buffers] if stage.buffers > 1 else [], self._layouts[stage]
        shape, element = [*halves, *layout.shape], self._reads[stage.read].result.type
        return self._b.alloc(f"shared{stage.read}", shape, element, Space.SHARED, layout.swizzle)

    def _alloc_ahead(self, stage: Stage) -> SSAValue:
        filling = self._filling(stage)
        shape = [filling.mapping(self._nest.threads).loops[0], filling.vector]
        return self._b.alloc(f"next{stage.read}", shape, self._reads[stage.read].result.type)

    def _filling(self, stage: Stage) -> CooperativeCopy:
        read = self._nest.workload.reads[stage.read]
        return filling_of(self._layouts[stage], read.order, read.bytes, stage.vector, is_async=stage.is_async)

    @contextmanager
    def _each(self, stage: Stage) -> Generator[tuple[dict[int, Index], list[Index], list[Index]]]:
        """A loop over the elements that the calling thread copies: where in the box each is, and its number."""
        b, layout = self._b, self._layouts[stage]
        with self._vectors(stage) as (filling, c):
            parts, number = c.delinearize(filling.shape), c // self._nest.threads
            if filling.vector == 1:
                yield *_split(layout, filling.place(parts, b.index(0))), [number, b.index(0)]
                return
            with b.loop("e", filling.vector, unroll=True) as e:
                yield *_split(layout, filling.place(parts, e)), [number, e]

    @contextmanager
    def _vectors(self, stage: Stage) -> Generator[tuple[CooperativeCopy, Index]]:
        """A loop over the vectors that the calling thread copies."""
        b, filling, threads = self._b, self._filling(stage), self._nest.threads
        ragged = filling.vectors % threads != 0
        with (
            b.tasks(["c"], filling.mapping(threads), b.thread, unroll=True) as (c,),
            b.when(c < filling.vectors if ragged else None),
        ):
            yield filling, c

    def _fill_registers(self, stage: Stage, at: At) -> StagedBuffer:
        """One thread copies all."""
        b, layout, element = self._b, self._layouts[stage], self._element(stage, at)
        held = StagedBuffer(layout, b.alloc(f"stage{stage.read}", layout.shape, self._reads[stage.read].result.type))
        names = [f"{'abcdefgh'[n % 8]}{n // 8 or ''}" for n in range(len(layout.shape))]
        with b.tasks(names, repeat(*layout.shape), unroll=self._is_gpu, vector=not self._is_gpu) as where:
            apart, rest = _split(layout, where)
            place = [rest[layout.order.index(dim)] for dim in range(len(rest))]
            b.store(element(apart, place), held.buffer, where)
        return held

    def _element(self, stage: Stage, at: At) -> _Element:
        """What belongs at each place: from the stage outside of this one, or from the tensor."""
        outer, box = self._body.held.get(stage.read), self._layouts[stage].box
        if outer is not None:
            return lambda apart, place: outer.load_for(self._b, {**at, **apart}, box, place)
        origin, conditions, source = self._origin(stage, at), self._conditions(stage), self._reads[stage.read]

        def element(apart: Mapping[int, Index], place: Sequence[Index]) -> Scalar:
            b, indices = self._b, list[Index]()
            for dim, first in enumerate(origin):
                index = first + (place[dim] - box.low[dim]) * box.scale[dim]
                for n, count in apart.items():
                    index = index + count * box.steps[n][dim] if box.steps[n][dim] else index
                indices.append(index)
            inside = all_of([self._compared(condition, indices) for condition in conditions])
            otherwise = None if inside is None else self._otherwise(source)
            return b.load(self._buffers[source.source], indices, inside, otherwise)

        return element

    def _origin(self, stage: Stage, at: At) -> list[Index]:
        """The indices that a read has where the levels that move inside of its stage stand at 0."""
        moving = set(self._nest.moving(stage.compute_at, stage.memory))
        known = {("level", n): index for n, index in at.items() if n not in moving}
        return [self._b.expression(index, known) for index in self._nest.indices(stage.read)]

    def _conditions(self, stage: Stage) -> list[Condition]:
        """What keeps a read inside of its tensor: its own predicate, and the ends that tiles reach beyond."""
        read = self._nest.workload.reads[stage.read]
        found = list(read.conditions)
        for dim, (lo, hi) in enumerate(self._body.positions.ranges(stage.read)):
            extent = read.shape[dim]
            below, beyond = Condition(dim, "sge", 1, 0), Condition(dim, "slt", 1, -extent)
            found += [below] if (lo is None or lo < 0) and below not in found else []
            found += [beyond] if (hi is None or hi >= extent) and beyond not in found else []
        return found

    def _compared(self, condition: Condition, indices: Sequence[Index]) -> Predicate:
        index = indices[condition.dim] * condition.scale
        kind = condition.kind.removeprefix("s")
        return Predicate(self._b.binary(kind, index.value, -condition.constant), self._b)

    def _otherwise(self, source: AtOp) -> Scalar:
        value = source.otherwise
        if value is None or not isinstance(value.owner, Operation):
            return self._b.constant(0, source.result.type)
        return self._b.evaluated(value.owner, {})


def _split(layout: Layout, place: Sequence[Index]) -> tuple[dict[int, Index], list[Index]]:
    """Where levels that stand apart are, and the place along the tensor's dimensions."""
    apart = dict(zip(layout.box.apart, place, strict=False))
    return apart, list(place[len(apart) :])


def _is_fetched_ahead(stage: Stage) -> bool:
    """Whether the next iteration's elements wait in registers."""
    return stage.buffers > 1 and not stage.is_async
