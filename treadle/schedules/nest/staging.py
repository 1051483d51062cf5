"""Writes the copies of reads to faster memory: by each thread to its registers, or by a block to its shared memory.

Local padding (DietCode, MLSys 2022, section 3.3): beyond a tensor's end a stage holds 0, so that what reads it needs no
predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.loop import Space
from treadle.dialects.task import repeat
from treadle.index.expr import Expr, const, var
from treadle.schedules.index_value import Index, Predicate, all_of
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.nest.filling import Filling, filling_of
from treadle.schedules.nest.held import Held
from treadle.schedules.nest.layout import Layout
from treadle.schedules.nest.nest import Nest, Stage
from treadle.schedules.nest.scope import At, Body
from treadle.schedules.nest.workload import Condition

_Element = Callable[[Mapping[int, Index], Sequence[Index]], Scalar]
"""What belongs at a place of a box, given where the levels that stand apart in it are."""


class Stager:
    """Fills the stages of one nest. Shared memory is allocated at once, registers where they are filled.

    is_gpu: registers are filled by unrolled code, not by vectors
    """

    def __init__(self, b: KernelBuilder, compute: ComputeOp, nest: Nest, body: Body, *, is_gpu: bool):
        self._b, self._nest, self._body, self._is_gpu = b, nest, body, is_gpu
        self._reads = compute.reads()
        self._buffers = dict(zip(compute.tensors(), b.inputs, strict=True))
        self._layouts = {stage: nest.layout(stage) for stage in nest.stages}
        self._shared = {stage: self._alloc_shared(stage) for stage in nest.stages_in("shared")}
        self._ahead = {stage: self._alloc_ahead(stage) for stage in self._shared if _is_fetched_ahead(stage)}

    @contextmanager
    def holding(self, stages: Sequence[Stage], half: Index | None = None) -> Generator[None]:
        """Reads of these stages go to shared memory inside; `half`: to which of its buffers."""
        before = dict(self._body.held)
        self._body.held |= {stage.read: Held(self._layouts[stage], self._shared[stage], half) for stage in stages}
        yield
        self._body.held = before

    @contextmanager
    def in_registers(self, place: int, at: At) -> Generator[None]:
        """Fills the stages in registers that stand at a place; they are read inside."""
        before = dict(self._body.held)
        for stage in self._nest.stages_in("register"):
            if stage.place == place:
                self._body.held[stage.read] = self._fill_registers(stage, at)
        yield
        self._body.held = before

    def copy(self, stages: Sequence[Stage], at: At) -> None:
        """All threads fill shared memory."""
        b = self._b
        for stage in stages:
            element, held = self._element(stage, at), Held(self._layouts[stage], self._shared[stage])
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
            held = Held(self._layouts[stage], self._shared[stage], half)
            with self._each(stage) as (apart, place, number):
                b.store(b.load(self._ahead[stage], number), held.buffer, held.address(b, apart, place))

    def start(self, stages: Sequence[Stage], at: At, half: Index) -> None:
        """All threads start asynchronous copies."""
        for stage in stages:
            held = Held(self._layouts[stage], self._shared[stage], half)
            with self._vectors(stage) as (filling, c):
                self._start(held, filling, c, self._element(stage, at))

    def _start(self, held: Held, filling: Filling, c: Index, element: _Element) -> None:
        """One vector, which is one element where neighbours are none in shared memory."""
        b, layout, row = self._b, held.layout, held.layout.order[-1]
        apart, place = _split(layout, filling.place(c.delinearize(filling.shape), b.index(0)))

        def value(e: Index) -> Scalar:
            return element(apart, [p + e if dim == row else p for dim, p in enumerate(place)])

        b.copy(held.buffer, held.address(b, apart, place), filling.vector, value)

    def _alloc_shared(self, stage: Stage) -> SSAValue:
        halves = [stage.buffers] if stage.buffers > 1 else []
        shape = [*halves, *self._layouts[stage].shape]
        return self._b.alloc(f"shared{stage.read}", shape, self._reads[stage.read].result.type, Space.SHARED)

    def _alloc_ahead(self, stage: Stage) -> SSAValue:
        filling = self._filling(stage)
        shape = [filling.mapping(self._nest.threads).loops[0], filling.vector]
        return self._b.alloc(f"next{stage.read}", shape, self._reads[stage.read].result.type)

    def _filling(self, stage: Stage) -> Filling:
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
    def _vectors(self, stage: Stage) -> Generator[tuple[Filling, Index]]:
        """A loop over the vectors that the calling thread copies."""
        b, filling, threads = self._b, self._filling(stage), self._nest.threads
        ragged = filling.vectors % threads != 0
        with (
            b.tasks(["c"], filling.mapping(threads), b.thread, unroll=True) as (c,),
            b.when(c < filling.vectors if ragged else None),
        ):
            yield filling, c

    def _fill_registers(self, stage: Stage, at: At) -> Held:
        """One thread copies all."""
        b, layout, element = self._b, self._layouts[stage], self._element(stage, at)
        held = Held(layout, b.alloc(f"stage{stage.read}", layout.shape, self._reads[stage.read].result.type))
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
        levels, moving = self._nest.levels, set(self._nest.moving(stage.place, stage.memory))
        known: dict[Hashable, Expr] = {("level", n): const(0) for n in range(len(levels))}
        for n, index in at.items():
            if n not in moving:
                known["level", n] = var(index.value, 0, levels[n].trips - 1)
        indices = self._nest.indices(stage.read)
        return [self._b.expression(index.substitute(known)) for index in indices]

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
        return self._b.insert(value.owner.clone())


def _split(layout: Layout, place: Sequence[Index]) -> tuple[dict[int, Index], list[Index]]:
    """Where levels that stand apart are, and the place along the tensor's dimensions."""
    apart = dict(zip(layout.box.apart, place, strict=False))
    return apart, list(place[len(apart) :])


def _is_fetched_ahead(stage: Stage) -> bool:
    """Whether the next iteration's elements wait in registers."""
    return stage.buffers > 1 and not stage.is_async


__all__ = ["Stager"]
