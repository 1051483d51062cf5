"""A kernel for a CPU from a definition and a nest: the one builder of all nests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.definition import Scalar, widened
from treadle.dialects.graph.dtypes import accumulator
from treadle.dialects.graph.reduction import identity
from treadle.dialects.loop import KernelOp
from treadle.dialects.task import repeat
from treadle.errors import TreadleError
from treadle.schedules.accumulator import narrowed
from treadle.schedules.index_value import Index, Predicate, all_of
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.nest.nest import Axis, Group, Level, Nest
from treadle.schedules.nest.workload import definition_of
from treadle.schedules.scalar_body import emit_operation
from treadle.schedules.template import Anchor

_NAMES = "ijklmnuvwxyz"
_Position = tuple[Level, Index]


def nest_kernel(anchor: Anchor, nest: Nest, name: str) -> KernelOp:
    """The kernel of an anchor, taking its operands. Raises what `definition_of` raises."""
    if nest.stages or nest.threads > 1:
        raise TreadleError("stages and threads are not built yet", "nest", "levels, loops and marks")
    compute, reduce = definition_of(anchor)
    kernel = _NestKernel(compute, reduce, nest).build(name)
    if compute is not anchor:
        compute.erase()
    return kernel


@dataclass(frozen=True)
class _Scope:
    """What the values of a definition are at one position, and where a vector's lanes are within the extents."""

    values: dict[SSAValue, SSAValue]
    mask: Predicate | None


class _NestKernel:
    """Writes the kernel of one definition.

    Tiles may overhang the extents. Reads along a spatial axis are then clamped to its last position, whose element is
    computed again and not stored; along the vector's axis and the reduction they are masked.
    """

    def __init__(self, compute: ComputeOp, reduce: ReduceOp | None, nest: Nest):
        self.compute, self.reduce, self.nest = compute, reduce, nest
        self.tensors = compute.tensors()
        self.b = KernelBuilder([t.type for t in self.tensors if isinstance(t.type, TensorType)], compute.type)
        self.arguments = [*compute.body.block.args, *(() if reduce is None else reduce.body.block.args)]
        self.vector_axes = {level.axis for group in nest.groups for level in group.levels if level.vector}

    def build(self, name: str) -> KernelOp:
        """The finished kernel."""
        b, blocks, groups = self.b, self.nest.blocks, self.nest.groups
        digits = b.block.delinearize([level.trips for level in blocks]) if blocks else []
        first = next((n for n, group in enumerate(groups) if group.role == "loop"), len(groups))
        outer = [level for group in groups[:first] if group.role != "block" for level in group.levels]
        at = list(zip(blocks, digits, strict=True))
        if self.reduce is None:
            self._loops(outer, at, lambda position: self._store(position, None))
        else:
            self._loops(outer, at, lambda position: self._reduced(groups[first:], position))
        return b.kernel(name, self.tensors, self.compute.type, self.nest.grid, 1, f"nest of {self.compute.type}")

    def _loops(self, levels: Sequence[Level], at: list[_Position], body: Callable[[list[_Position]], None]) -> None:
        """Loops over some levels, outermost first."""
        if not levels:
            body(at)
            return
        level, *rest = levels
        with self.b.loop(self._name(level), level.trips, unroll=level.unroll, vector=level.vector) as index:
            self._loops(rest, [*at, (level, index)], body)

    def _reduced(self, groups: Sequence[Group], at: list[_Position]) -> None:
        """A tile of accumulators: reset, folded over the loops, stored."""
        assert self.reduce is not None
        b, kind, type = self.b, self.reduce.kind.data, accumulator(self.reduce.result.type)
        tile = [self.nest.levels[n] for n in self.nest.tile]
        acc = b.alloc("acc", [level.trips for level in tile] or [1], type)
        self._tile(tile, at, lambda _, place: b.store(b.constant(identity(kind, type), type), acc, place))
        self._fold(groups, at, [], acc)
        self._tile(tile, at, lambda position, place: self._store(position, b.load(acc, place)))

    def _fold(self, groups: Sequence[Group], at: list[_Position], place: list[Index], acc: SSAValue) -> None:
        """Adds the terms to the accumulators: loops as they are, the innermost part of the tile unrolled."""
        if not groups:
            self._add(at, place, acc)
            return
        group, rest = groups[0], groups[1:]
        if group.role == "repeat" and not any(each.role == "loop" for each in rest):
            levels = [level for each in groups for level in each.levels]
            self._tile(levels, at, lambda position, inner: self._add(position, [*place, *inner], acc), alone=False)
            return

        def inside(position: list[_Position]) -> None:
            added = [index for _, index in position[len(at) :]] if group.role == "repeat" else []
            self._fold(rest, position, [*place, *added], acc)

        self._loops(group.levels, at, inside)

    def _tile(
        self,
        levels: Sequence[Level],
        at: list[_Position],
        body: Callable[[list[_Position], list[Index]], None],
        *,
        alone: bool = True,
    ) -> None:
        """Unrolled loops over levels of the register tile; `alone`: it is all of the tile, which may be one element."""
        if not levels:
            body(at, [self.b.index(0)] if alone else [])
            return
        vector = any(level.vector for level in levels)
        names = [f"{self._name(level)}{n}" for n, level in enumerate(levels)]
        mapping = repeat(*(level.trips for level in levels))
        with self.b.tasks(names, mapping, unroll=True, vector=vector) as indices:
            body([*at, *zip(levels, indices, strict=True)], list(indices))

    def _add(self, at: list[_Position], place: list[Index], acc: SSAValue) -> None:
        """One term for one accumulator; beyond the end of the reduction it is the identity."""
        assert self.reduce is not None
        b, kind = self.b, self.reduce.kind.data
        positions = self._positions(at)
        term = widened(b, self._term(self.reduce, self._scope(positions)))
        beyond = all_of(
            [positions[axis] < axis.extent for axis in positions if axis.is_reduction and self.nest.overhangs(axis)]
        )
        if beyond is not None:
            term = b.select(beyond, term, b.constant(identity(kind, term.type), term.type))
        where = place or [b.index(0)]
        b.store(b.binary(kind, b.load(acc, where), term), acc, where)

    def _term(self, reduce: ReduceOp, scope: _Scope) -> Scalar:
        """What the reduction folds at one position."""
        for op in self.compute.body.block.ops:
            if op is reduce:
                break
            scope.values[op.results[0]] = self._operation(op, scope)
        for op in reduce.body.block.ops:
            if isinstance(op, YieldOp):
                return scope.values[op.value]
            scope.values[op.results[0]] = self._operation(op, scope)
        raise ValueError("a definition's block ends with graph.yield")

    def _store(self, at: list[_Position], total: Scalar | None) -> None:
        """The element at a position, given the reduction's total, unless it lies beyond the end."""
        b, positions = self.b, self._positions(at)
        inside = all_of(
            [positions[axis] < axis.extent for axis in positions if not axis.is_reduction and self.nest.overhangs(axis)]
        )
        scope = self._scope(positions)
        if self.reduce is not None and total is not None:
            scope.values[self.reduce.result] = narrowed(b, total, self.reduce.result.type)
        for op in self.compute.body.block.ops:
            if isinstance(op, YieldOp):
                indices = self._indices(positions, clamped=False)
                b.store(scope.values[op.value], b.output, indices[: len(self.compute.shape)], inside)
                return
            if op is not self.reduce:
                scope.values[op.results[0]] = self._operation(op, scope)

    def _operation(self, op: Operation, scope: _Scope) -> Scalar:
        """An operation of the definition; a read along a vector that overhangs is masked."""
        b, values = self.b, scope.values
        if not isinstance(op, AtOp) or scope.mask is None:
            return emit_operation(b, op, values)
        own = None if op.predicate is None else Predicate(values[op.predicate], b)
        otherwise = b.constant(0, op.result.type) if op.otherwise is None else values[op.otherwise]
        indices = [values[index] for index in op.indices]
        return b.load(values[op.source], indices, all_of([own, scope.mask]), otherwise)

    def _positions(self, at: list[_Position]) -> dict[Axis, Index]:
        """Where each axis stands; those that no level moves are at 0."""
        found: dict[Axis, Index] = {}
        for level, index in at:
            step = index * level.stride
            found[level.axis] = found[level.axis] + step if level.axis in found else step
        return found

    def _scope(self, positions: dict[Axis, Index]) -> _Scope:
        """Buffers and indices of the definition, clamped where tiles overhang and no vector runs."""
        values: dict[SSAValue, SSAValue] = dict(zip(self.tensors, self.b.inputs, strict=True))
        indices = self._indices(positions, clamped=True)
        values.update(zip(self.arguments, (index.value for index in indices), strict=False))
        masked = [axis for axis in positions if axis in self.vector_axes and self.nest.overhangs(axis)]
        return _Scope(values, all_of([positions[axis] < axis.extent for axis in masked]))

    def _indices(self, positions: dict[Axis, Index], *, clamped: bool) -> list[Index]:
        """The index of each dimension that has a position."""
        found: dict[int, Index] = {}
        for axis, position in positions.items():
            beyond = clamped and self.nest.overhangs(axis) and axis not in self.vector_axes
            where = position.min(axis.extent - 1) if beyond else position
            parts = where.delinearize(axis.shape) if len(axis.shape) > 1 else [where]
            found |= {axis.first + n: part for n, part in enumerate(parts)}
        return [found[n] for n in sorted(found)]

    def _name(self, level: Level) -> str:
        return _NAMES[level.axis.first % len(_NAMES)]


__all__ = ["nest_kernel"]
