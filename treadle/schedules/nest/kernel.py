"""A kernel from a definition and a nest: the one builder of all nests, for CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd, prod

from xdsl.ir import SSAValue

from treadle.dialects.graph import ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.definition import Scalar, widened
from treadle.dialects.loop import KernelOp
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, Predicate, all_of, kernel_builder, narrowed
from treadle.schedules.nest.accumulators import Accumulators
from treadle.schedules.nest.mma import FragmentAccumulators
from treadle.schedules.nest.nest import Axis, Nest
from treadle.schedules.nest.scope import At, Body
from treadle.schedules.nest.staging import Pipeline, Stager
from treadle.schedules.nest.workload import definition_of
from treadle.schedules.reduction_end import ReductionEnd, reduction_end, terms_of, with_end
from treadle.schedules.split_k import block_coordinates
from treadle.schedules.template import Anchor
from treadle.target import Target

# Which tiles of accumulators lie inside of all extents that tiles overhang: they need no masks and no clamps.


@dataclass(frozen=True)
class WholeAlong:
    """When a tile lies inside of one axis: where the number of the unit that it starts at is below `limit`.

    steps: units that an iteration of each level outside of the tile moves it; most: the number of the last tile's unit
    """

    axis: Axis
    steps: Mapping[int, int]
    limit: int
    most: int

    def start(self, at: Mapping[int, Index]) -> Index:
        """The number of the unit that a tile starts at."""
        total: Index | None = None
        for n, step in self.steps.items():
            term = at[n] * step
            total = term if total is None else total + term
        assert total is not None, "an axis along which no level moves the tile is not overhung by some tiles only"
        return total


def whole_along(nest: Nest) -> tuple[WholeAlong, ...]:
    """For each spatial axis that some tiles of a nest on a CPU overhang and others do not, when one is inside.

    None at all where no tile reaches further than one position along such an axis: what is masked or clamped then does
    not move inside of the tile.
    """
    found = [each for axis in nest.axes if not axis.is_reduction and (each := _along(nest, axis)) is not None]
    return tuple(found) if any(_span(nest, each.axis) > 1 for each in found) else ()


def _along(nest: Nest, axis: Axis) -> WholeAlong | None:
    span = _span(nest, axis)
    if not nest.overhangs(axis) or span > axis.extent:
        return None
    levels = [(n, level) for n, level in enumerate(nest.levels) if level.axis == axis and n not in nest.tile]
    strides = {n: level.stride for n, level in levels if level.trips > 1}
    unit = gcd(*strides.values())
    steps = {n: stride // unit for n, stride in strides.items()}
    most = sum(step * (nest.levels[n].trips - 1) for n, step in steps.items())
    return WholeAlong(axis, steps, (axis.extent - span) // unit + 1, most)


def _span(nest: Nest, axis: Axis) -> int:
    """IterationPoint from the first of a tile to its last one."""
    inside = [nest.levels[n] for n in nest.tile if nest.levels[n].axis == axis]
    return 1 + sum((level.trips - 1) * level.stride for level in inside)


def is_whole(axes: tuple[WholeAlong, ...], at: Mapping[int, Index]) -> Predicate:
    """Whether the tile that stands where the levels outside of it are lies inside of the axes."""
    conditions = [each.start(at) < each.limit for each in axes]
    found = conditions[0]
    for condition in conditions[1:]:
        found = found & condition
    return found


def is_ragged(axes: tuple[WholeAlong, ...], at: Mapping[int, Index]) -> Predicate:
    """The opposite of `is_whole`."""
    conditions = [each.start(at) >= each.limit for each in axes]
    found = conditions[0]
    for condition in conditions[1:]:
        found = found | condition
    return found


def parts(axes: tuple[WholeAlong, ...]) -> tuple[float, float]:
    """How many of the tiles are inside, and how many are not; each unit counts as the start of one."""
    inside = prod(each.limit / (each.most + 1) for each in axes)
    first, *others = ((each.most + 1 - each.limit) / (each.most + 1) for each in axes)
    return inside, reduce(lambda found, each: 1 - (1 - found) * (1 - each), others, first)


_NAMES = "ijklmnuvwxyz"


def nest_kernel(
    anchor: Anchor, nest: Nest, target: Target, name: str, definition: tuple[ComputeOp, ReduceOp | None] | None = None
) -> KernelOp:
    """The kernel of an anchor, taking its operands; `definition`: that of the anchor, where the caller has it. Raises
    what `definition_of` raises."""
    compute, reduce = definition_of(anchor) if definition is None else definition
    end = reduction_end(anchor)
    kernel = _NestKernel(compute, reduce, nest, end, is_gpu=target.is_cuda).build(name)
    if compute is not anchor and definition is None:
        compute.erase()
    return kernel


class _NestKernel:
    """Writes the kernel of one definition.

    Tiles may overhang the extents. Reads along a spatial axis are then clamped to its last position, whose element is
    computed again and not stored; along vectors and threads they are masked, and stages are padded. On a CPU, tiles of
    accumulators that lie inside of all extents have code of their own, without any of this along spatial axes.
    """

    def __init__(
        self, compute: ComputeOp, reduce: ReduceOp | None, nest: Nest, end: ReductionEnd | None, *, is_gpu: bool
    ):
        self.compute, self.reduce, self.nest, self.end, self.is_gpu = compute, reduce, nest, end, is_gpu
        self.tensors = with_end(compute.tensors(), end)
        self.b = kernel_builder(self.tensors, compute.type)
        self.body = Body(self.b, compute, reduce, nest)
        self.stager = Stager(self.b, compute, nest, self.body, is_gpu=is_gpu)
        self.pipeline = Pipeline(self.b, nest, self.stager, self._name, self._trips)
        self.whole = () if is_gpu or reduce is None or nest.checks_borders else whole_along(nest)
        # A GPU's threads branch; the lanes of a CPU's vectors, of which some exist, have masks.
        self.branches = is_gpu and nest.checks_borders

    def build(self, name: str) -> KernelOp:
        """The finished kernel."""
        b, nest = self.b, self.nest
        worker = b.thread if nest.product is None else b.thread // WARP
        at = self._of_block() | self._digits(worker, nest.numbers("thread"))
        inside = () if self.reduce is None else nest.tile
        outer = [n for n in nest.numbers("repeat") if n not in inside]
        body = self._versions if self.reduce is not None else self._store
        self._staged(len(nest.blocks), at, lambda: self._loops(outer, at, body))
        comment = f"nest of {self.compute.type}"
        least = nest.min_blocks_per_sm
        return b.kernel(name, self.tensors, self.compute.type, nest.grid, nest.threads, comment, least)

    def _of_block(self) -> dict[int, Index]:
        """The iterations of the levels of the calling block."""
        numbers, swizzle = [*self.nest.numbers("block")], self.nest.swizzle
        if swizzle is None:
            return self._digits(self.b.block, numbers)
        rows, columns = (self.nest.levels[n].trips for n in (swizzle.rows, swizzle.rows + 1))
        numbers.remove(swizzle.rows + 1)
        at = self._digits(self.b.block, numbers, {swizzle.rows: rows * columns})
        row, column = block_coordinates(at[swizzle.rows], rows, columns, swizzle.group)
        return {**at, swizzle.rows: row, swizzle.rows + 1: column}

    def _digits(self, whole: Index, numbers: Sequence[int], taken: Mapping[int, int] | None = None) -> dict[int, Index]:
        """The iterations of levels that are numbered together, the last one fastest; `taken`: other trips of some."""
        trips = {n: self.nest.levels[n].trips for n in numbers} | dict(taken or {})
        moved = {n: count for n, count in trips.items() if count > 1}
        return dict(zip(moved, whole.delinearize([*moved.values()]) if moved else [], strict=True))

    def _staged(self, place: int, at: At, body: Callable[[], None]) -> None:
        """What is inside of a place whose stages are filled once."""
        shared = [stage for stage in self.nest.stages_in("shared") if stage.compute_at == place]
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
        accumulators = self._accumulators(self.reduce)
        accumulators.reset(at)
        first = self.nest.first_loop
        inside = [n for n, role in enumerate(self.nest.roles) if n >= first and role in ("loop", "repeat")]
        self._fold([n for n in inside if n not in self.nest.virtual], at, accumulators)
        has_result = accumulators.fold_threads(at)
        with accumulators.folded_blocks(at):
            accumulators.each(at, lambda inner, total: self._store(inner, total, has_result))

    def _accumulators(self, reduce: ReduceOp) -> Accumulators:
        if self.nest.product is not None:
            return FragmentAccumulators(self.b, reduce, self.nest, self._unrolled, self.body)
        return Accumulators(self.b, reduce, self.nest, self._unrolled)

    def _fold(self, numbers: Sequence[int], at: At, accumulators: Accumulators) -> None:
        """Adds the terms to the accumulators: loops as they are, the innermost part of the tile unrolled."""
        if not any(self.nest.roles[n] == "loop" for n in numbers):
            inside = [*self.nest.virtual, *numbers]
            if isinstance(accumulators, FragmentAccumulators):
                accumulators.multiply(inside, at)
            else:
                self._unrolled(inside, at, lambda inner: self._add(inner, accumulators))
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
        here, known = (self.body.positions.inside(self.nest.axes, at), self.nest.axes) if self.branches else (None, ())
        with b.when(here), self.body.positions.within(known):
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

    def _trips(self, number: int, at: At) -> Index | int:
        """Iterations of a level: as many as there are, or as the call has terms for where it is the outermost loop
        over them, at least one."""
        nest, end, level = self.nest, self.end, self.nest.levels[number]
        loops = [n for n in nest.numbers("loop") if nest.levels[n].axis == level.axis and nest.levels[n].trips > 1]
        if end is None or loops[0] != number or level.unroll or level.vector:
            return level.trips
        if level.axis.first != nest.workload.spatial + end.dim:
            return level.trips
        left = terms_of(self.b, end, self.tensors, least=1 if self.is_gpu else 0) * (level.axis.extent // end.bound)
        slices = [n for n in nest.slices if n in at and nest.levels[n].axis == level.axis]
        if slices:
            first = at[slices[0]] * nest.levels[slices[0]].stride
            left = left.max(first + 1) - first
        steps = (left + (level.stride - 1)) // level.stride if level.stride > 1 else left
        return steps.min(level.trips) if slices else steps

    def _name(self, number: int) -> str:
        return _NAMES[self.nest.levels[number].axis.first % len(_NAMES)]
