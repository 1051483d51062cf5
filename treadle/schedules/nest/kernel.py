"""A kernel from a definition and a nest: the one builder of all nests, for CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from treadle.dialects.graph import ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.definition import Scalar, widened
from treadle.dialects.loop import KernelOp
from treadle.dialects.task import repeat
from treadle.schedules.accumulator import narrowed
from treadle.schedules.index_value import Index, Predicate, all_of
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.nest.accumulators import Accumulators
from treadle.schedules.nest.nest import Nest
from treadle.schedules.nest.pipeline import Pipeline
from treadle.schedules.nest.scope import At, Body
from treadle.schedules.nest.staging import Stager
from treadle.schedules.nest.whole_tiles import is_ragged, is_whole, whole_along
from treadle.schedules.nest.workload import definition_of
from treadle.schedules.template import Anchor
from treadle.target import Target

_NAMES = "ijklmnuvwxyz"


def nest_kernel(anchor: Anchor, nest: Nest, target: Target, name: str) -> KernelOp:
    """The kernel of an anchor, taking its operands. Raises what `definition_of` raises."""
    compute, reduce = definition_of(anchor)
    kernel = _NestKernel(compute, reduce, nest, is_gpu=target.is_cuda).build(name)
    if compute is not anchor:
        compute.erase()
    return kernel


class _NestKernel:
    """Writes the kernel of one definition.

    Tiles may overhang the extents. Reads along a spatial axis are then clamped to its last position, whose element is
    computed again and not stored; along vectors and threads they are masked, and stages are padded. On a CPU, tiles of
    accumulators that lie inside of all extents have code of their own, without any of this along spatial axes.
    """

    def __init__(self, compute: ComputeOp, reduce: ReduceOp | None, nest: Nest, *, is_gpu: bool):
        self.compute, self.reduce, self.nest = compute, reduce, nest
        self.tensors = compute.tensors()
        self.b = KernelBuilder([t.type for t in self.tensors if isinstance(t.type, TensorType)], compute.type)
        self.body = Body(self.b, compute, reduce, nest)
        self.stager = Stager(self.b, compute, nest, self.body, is_gpu=is_gpu)
        self.pipeline = Pipeline(self.b, nest, self.stager, self._name)
        self.whole = () if is_gpu or reduce is None else whole_along(nest)

    def build(self, name: str) -> KernelOp:
        """The finished kernel."""
        b, nest = self.b, self.nest
        at = self._digits(b.block, nest.numbers("block")) | self._digits(b.thread, nest.numbers("thread"))
        inside = () if self.reduce is None else nest.tile
        outer = [n for n in nest.numbers("repeat") if n not in inside]
        body = self._versions if self.reduce is not None else self._store
        self._staged(len(nest.blocks), at, lambda: self._loops(outer, at, body))
        comment = f"nest of {self.compute.type}"
        least = nest.min_blocks_per_sm
        return b.kernel(name, self.tensors, self.compute.type, nest.grid, nest.threads, comment, least)

    def _digits(self, whole: Index, numbers: Sequence[int]) -> dict[int, Index]:
        """The iterations of levels that are numbered together, the last one fastest."""
        numbers = [n for n in numbers if self.nest.levels[n].trips > 1]
        digits = whole.delinearize([self.nest.levels[n].trips for n in numbers]) if numbers else []
        return dict(zip(numbers, digits, strict=True))

    def _staged(self, place: int, at: At, body: Callable[[], None]) -> None:
        """What is inside of a place whose stages are filled once."""
        shared = [stage for stage in self.nest.stages_in("shared") if stage.place == place]
        if shared:
            self.stager.copy(shared, at)
            self.b.barrier()
        with self.stager.holding(shared), self.stager.in_registers(place, at):
            body()

    def _loops(self, numbers: Sequence[int], at: At, body: Callable[[At], None]) -> None:
        """Loops over some levels, outermost first."""
        if not numbers:
            body(at)
            return
        self._loop(numbers[0], at, lambda inside: self._loops(numbers[1:], inside, body))

    def _loop(self, number: int, at: At, body: Callable[[At], None]) -> None:
        level = self.nest.levels[number]
        if level.trips == 1:
            body(at)
            return
        with self.b.loop(self._name(number), level.trips, unroll=level.unroll, vector=level.vector) as index:
            body({**at, number: index})

    def _versions(self, at: At) -> None:
        """A tile of accumulators: once for those inside of all extents, and once for those that overhang."""
        if not self.whole:
            self._reduced(at)
            return
        with self.b.when(is_whole(self.whole, at)), self.body.positions.within(each.axis for each in self.whole):
            self._reduced(at)
        with self.b.when(is_ragged(self.whole, at)):
            self._reduced(at)

    def _reduced(self, at: At) -> None:
        """A tile of accumulators: reset, folded over the loops and by those that share it, stored."""
        assert self.reduce is not None
        accumulators = Accumulators(self.b, self.reduce, self.nest, self._unrolled)
        accumulators.reset(at)
        first = self.nest.first_loop
        inside = [n for n, role in enumerate(self.nest.roles) if n >= first and role in ("loop", "repeat")]
        self._fold([n for n in inside if n not in self.nest.virtual], at, accumulators)
        has_result = accumulators.fold_threads(at)
        with accumulators.folded_blocks(at):
            accumulators.each(at, lambda inner, total: self._store(inner, total, has_result))

    def _fold(self, numbers: Sequence[int], at: At, accumulators: Accumulators) -> None:
        """Adds the terms to the accumulators: loops as they are, the innermost part of the tile unrolled."""
        if not any(self.nest.roles[n] == "loop" for n in numbers):
            self._unrolled([*self.nest.virtual, *numbers], at, lambda inner: self._add(inner, accumulators))
            return
        number, rest = numbers[0], numbers[1:]
        loop = self.pipeline.loop if self.nest.roles[number] == "loop" else self._loop
        loop(number, at, lambda inside: self._fold(rest, inside, accumulators))

    def _unrolled(self, numbers: Sequence[int], at: At, body: Callable[[At], None]) -> None:
        """Unrolled loops over levels of the register tile."""
        numbers = [n for n in numbers if self.nest.levels[n].trips > 1]
        if not numbers:
            body(at)
            return
        levels = [self.nest.levels[n] for n in numbers]
        names = [f"{self._name(n)}{count}" for count, n in enumerate(numbers)]
        mapping = repeat(*(level.trips for level in levels))
        vector = any(level.vector for level in levels)
        with self.b.tasks(names, mapping, unroll=True, vector=vector) as indices:
            body({**at, **dict(zip(numbers, indices, strict=True))})

    def _add(self, at: At, accumulators: Accumulators) -> None:
        """One term for one accumulator; beyond the end of the reduction it is the identity."""
        assert self.reduce is not None
        b, end = self.b, self.reduce.body.block.last_op
        assert isinstance(end, YieldOp), "verified"
        term = widened(b, self.body.value(end.value, at))
        inside = self.body.inside_terms(at)
        if inside is not None:
            term = b.select(inside, term, accumulators.identity())
        accumulators.add(at, term)

    def _store(self, at: At, total: Scalar | None = None, has_result: Predicate | None = None) -> None:
        """The element at a position, given the reduction's total, unless it lies beyond the end."""
        b, known = self.b, dict[SSAValue, Scalar]()
        if self.reduce is not None and total is not None:
            known[self.reduce.result] = narrowed(b, total, self.reduce.result.type)
        end = self.compute.body.block.last_op
        assert isinstance(end, YieldOp), "verified"
        value, indices = self.body.value(end.value, at, known), self.body.positions.indices(at)
        inside = self.body.positions.inside([axis for axis in self.nest.axes if not axis.is_reduction], at)
        where = [indices[n] for n in range(len(self.compute.shape))]
        b.store(value, b.output, where, all_of([inside, has_result]))

    def _name(self, number: int) -> str:
        return _NAMES[self.nest.levels[number].axis.first % len(_NAMES)]


__all__ = ["nest_kernel"]
