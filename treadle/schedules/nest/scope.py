"""The definition of an anchor at one position of a nest: positions, values, and reads of tensors or of stages."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, prod
from typing import TypeAlias

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp
from treadle.dialects.graph.definition import Scalar
from treadle.index.expr import Expr, Range, var
from treadle.schedules.kernel_builder import Index, KernelBuilder, Predicate, all_of
from treadle.schedules.nest.box import StagedBuffer
from treadle.schedules.nest.nest import Axis, Nest

At: TypeAlias = Mapping[int, Index]
"""The iteration of each level that has more than one; those that are left out stand at 0."""


class IterationPoint:
    """The current index along each axis, and the masks of what lies beyond its end."""

    def __init__(self, b: KernelBuilder, nest: Nest):
        self._b, self._nest = b, nest
        self._within = frozenset[Axis]()
        masked = (axis for axis in nest.axes if nest.checks_borders or nest.masks(axis))
        self._masked = {axis for axis in masked if nest.overhangs(axis)}

    @contextmanager
    def within(self, axes: Iterable[Axis]) -> Generator[None]:
        """Inside, all positions along some axes are before their ends."""
        before = self._within
        self._within = before.union(axes)
        yield
        self._within = before

    def overhangs(self, axis: Axis) -> bool:
        """Whether some positions here lie beyond an axis's end."""
        return self._nest.overhangs(axis) and axis not in self._within

    def of(self, axis: Axis, at: At) -> Index:
        """The position along an axis."""
        total: Index | None = None
        for n, level in enumerate(self._nest.levels):
            if level.axis == axis and n in at:
                step = at[n] * level.stride
                total = step if total is None else total + step
        return self._b.index(0) if total is None else total

    def inside(self, axes: Sequence[Axis], at: At) -> Predicate | None:
        """Whether the position is before the end of some axes; None where it always is."""
        return all_of([self.of(axis, at) < axis.extent for axis in axes if self.overhangs(axis)])

    def indices(self, at: At) -> dict[int, Index]:
        """The index of each dimension."""
        return self._split({axis: self.of(axis, at) for axis in self._nest.axes})

    def clamped(self, at: At) -> dict[int, Index]:
        """The index of each dimension, at the last position of axes that overhang and along which none is masked."""
        found = {axis: self.of(axis, at) for axis in self._nest.axes}
        for axis, position in found.items():
            if self.overhangs(axis) and axis not in self._masked:
                found[axis] = position.min(axis.extent - 1)
        return self._split(found)

    def mask(self, read: int, at: At, *, is_clamped: bool) -> Predicate | None:
        """When a read is inside of its tensor as far as it is not clamped to that."""
        dims = self._nest.workload.reads[read].dims
        axes = [axis for axis in self._nest.axes if not is_clamped or axis in self._masked]
        return self.inside([axis for axis in axes if dims & axis.dimensions], at)

    def ranges(self, read: int) -> list[Range]:
        """The bounds of each index of a read."""
        if not self._within:
            return [index.range() for index in self._nest.indices(read)]
        known: dict[Hashable, Expr] = {}
        for axis in self._nest.axes:
            end = self._nest.covered(axis) if self.overhangs(axis) else axis.extent
            shape = (ceil(end / prod(axis.shape[1:])), *axis.shape[1:])
            known |= {axis.first + n: var(axis.first + n, 0, extent - 1) for n, extent in enumerate(shape)}
        return [index.substitute(known).range() for index in self._nest.workload.reads[read].indices]

    @staticmethod
    def _split(positions: Mapping[Axis, Index]) -> dict[int, Index]:
        found: dict[int, Index] = {}
        for axis, position in positions.items():
            parts = position.delinearize(axis.shape) if len(axis.shape) > 1 else [position]
            found |= {axis.first + n: part for n, part in enumerate(parts)}
        return found


@dataclass(frozen=True)
class _Scope:
    """Values of a definition at one position.

    given: those that depend on no index; is_clamped: indices are those that `IterationPoint.clamped` gives
    """

    given: Mapping[SSAValue, SSAValue]
    values: dict[SSAValue, SSAValue]
    is_clamped: bool = True


class Body:
    """Writes scalars of a definition. What a value is computed from is written when it is first asked for, so that
    indices of reads that go through stages are not."""

    def __init__(self, b: KernelBuilder, compute: ComputeOp, reduce: ReduceOp | None, nest: Nest):
        self._b, self._nest = b, nest
        inner = () if reduce is None else reduce.body.block.args
        self._arguments: dict[SSAValue, int] = {arg: n for n, arg in enumerate((*compute.body.block.args, *inner))}
        self._reads = {at: n for n, at in enumerate(compute.reads())}
        self._buffers: dict[SSAValue, SSAValue] = dict(zip(compute.tensors(), b.inputs, strict=False))
        self.positions = IterationPoint(b, nest)
        self.held: dict[int, StagedBuffer] = {}
        """The innermost stage of each read that has one here."""

    def value(self, value: SSAValue, at: At, known: Mapping[SSAValue, Scalar] | None = None) -> Scalar:
        """A value of the definition where the levels have done so many iterations; `known` holds some values."""
        given = self._buffers | dict(known or {})
        return self._value(value, at, _Scope(given, dict(given)))

    def inside_terms(self, at: At) -> Predicate | None:
        """Whether the position is before the end of the reduction; None where it always is, or where each term beyond
        is the identity: a product all of whose factors are 0 there, since they are staged."""
        axes = [axis for axis in self._nest.axes if axis.is_reduction and not self._is_padded(axis)]
        return self.positions.inside(axes, at)

    def _is_padded(self, axis: Axis) -> bool:
        workload = self._nest.workload
        terms = [n for n, read in enumerate(workload.reads) if read.is_term]
        return workload.is_product and all(
            n in self.held and workload.reads[n].ends_with(axis.first, axis.shape[0]) for n in terms
        )

    def _value(self, value: SSAValue, at: At, scope: _Scope) -> Scalar:
        values = scope.values
        if value in values:
            return values[value]
        op = value.owner
        if isinstance(op, Operation):
            values[value] = self._operation(op, at, scope)
        else:
            indices = self.positions.clamped(at) if scope.is_clamped else self.positions.indices(at)
            values |= {arg: indices[n].value for arg, n in self._arguments.items()}
        return values[value]

    def _operation(self, op: Operation, at: At, scope: _Scope) -> Scalar:
        number = self._reads[op] if isinstance(op, AtOp) else None
        if number is not None and number in self.held:
            return self.held[number].load(self._b, at)
        if scope.is_clamped and isinstance(op, AtOp) and op.predicate is not None:
            # It has a predicate anyway, and minima in one are harder to prove.
            scope = _Scope(scope.given, dict(scope.given), is_clamped=False)
        for operand in op.operands:
            if not isinstance(operand.type, TensorType):
                self._value(operand, at, scope)
        values = scope.values
        mask = None if number is None else self.positions.mask(number, at, is_clamped=scope.is_clamped)
        if not isinstance(op, AtOp) or mask is None:
            return self._b.evaluated(op, values)
        own = None if op.predicate is None else Predicate(values[op.predicate], self._b)
        otherwise = self._b.constant(0, op.result.type) if op.otherwise is None else values[op.otherwise]
        indices = [values[index] for index in op.indices]
        return self._b.load(values[op.source], indices, all_of([own, mask]), otherwise)


__all__ = ["At", "Body", "IterationPoint"]
