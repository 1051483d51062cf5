"""The nest of a schedule program as a value: which levels there are, in what order, with what extents.

Source: the levels are those of MetaSchedule's multi-level tiling (NeurIPS 2022, appendix A.3), arranged as a
composition of Hidet's task mappings (ASPLOS 2023, section 5.1) with the reduction in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from xdsl.ir import SSAValue

from treadle.dialects.schedule import (
    ArrangeOp,
    AxesOp,
    Choice,
    FuseOp,
    MarkOp,
    ProgramOp,
    SampleOp,
    SampleTileOp,
    SplitOp,
    StageOp,
)
from treadle.dialects.schedule.sizes import values_of
from treadle.dialects.schedule.tiling import Role
from treadle.errors import TreadleError

MOST_ACCUMULATORS = 1024
"""Of a register tile, whose code is unrolled: twice the 512 floats of 32 vectors of 16, the largest register file."""


@dataclass(frozen=True)
class Axis:
    """Neighbouring dimensions of an iteration space taken as one, row-major.

    first: the number of the first dimension; shape: their extents
    """

    first: int
    shape: tuple[int, ...]
    is_reduction: bool

    @property
    def extent(self) -> int:
        """Positions along the axis."""
        return prod(self.shape)


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
class Nest:
    """The whole nest, outermost first."""

    groups: tuple[Group, ...]

    @cached_property
    def blocks(self) -> tuple[Level, ...]:
        """The levels whose iterations are blocks of the grid."""
        return tuple(level for group in self.groups if group.role == "block" for level in group.levels)

    @cached_property
    def first_loop(self) -> int:
        """The number of the first group that folds the reduction; the number of groups without one."""
        return next((n for n, group in enumerate(self.groups) if group.role == "loop"), len(self.groups))

    @cached_property
    def tile(self) -> tuple[Level, ...]:
        """The spatial levels inside of the reduction: a thread's accumulators."""
        inside = self.groups[self.first_loop :]
        return tuple(level for group in inside if group.role == "repeat" for level in group.levels)

    def covered(self, axis: Axis) -> int:
        """Positions of an axis that the levels reach; more than the extent where tiles overhang."""
        return prod(level.trips for group in self.groups for level in group.levels if level.axis == axis)

    def overhangs(self, axis: Axis) -> bool:
        """Whether some positions that the levels reach lie beyond the end."""
        return self.covered(axis) != axis.extent


def nest_of(program: ProgramOp, decisions: Mapping[str, Choice], extents: Sequence[int], spatial: int) -> Nest:
    """Replays a program for an iteration space whose first `spatial` extents are the result's.

    TreadleError for a sample without a decision, a factor out of its sample's support, axes that are not those of the
    iteration space, and a register tile beyond `MOST_ACCUMULATORS`.
    """
    where = f"schedule program @{program.sym_name.data}"
    return _Replay(where, dict(decisions), tuple(extents), spatial).run(program)


class _Replay:
    """Instructions one after the other, each a change of what is known of axes and levels."""

    def __init__(self, where: str, decisions: Mapping[str, Choice], extents: tuple[int, ...], spatial: int):
        self._where, self._decisions = where, decisions
        self._extents, self._spatial = extents, spatial
        self._numbers: dict[SSAValue, int] = {}
        self._axes: dict[SSAValue, Axis] = {}
        self._levels: dict[SSAValue, Level] = {}

    def run(self, program: ProgramOp) -> Nest:
        """The finished nest."""
        arranged: ArrangeOp | None = None
        for op in program.instructions:
            match op:
                case AxesOp():
                    self._name_axes(op)
                case SampleOp() | SampleTileOp():
                    self._sample(op)
                case SplitOp():
                    self._split(op)
                case FuseOp():
                    self._fuse(op)
                case ArrangeOp():
                    arranged = op
                case MarkOp():
                    self._mark(op)
                case StageOp():
                    raise TreadleError("schedule.stage is not built yet", self._where, "levels, loops and marks")
                case _:
                    raise TreadleError(f"{op.name} is no instruction of a nest", self._where, "schedule.arrange")
        if arranged is None:
            raise TreadleError("it has no schedule.arrange", self._where, "a program of a nest")
        groups = arranged.groups
        nest = Nest(tuple(Group(role, tuple(map(self._level, levels))) for role, levels in groups))
        if any(level.axis.is_reduction for level in nest.blocks):
            raise TreadleError("a reduction level is in block: split-k is not built yet", self._where, "loop")
        size = prod(level.trips for level in nest.tile)
        if size > MOST_ACCUMULATORS:
            message = f"the register tile has {size} accumulators, {size - MOST_ACCUMULATORS} too many"
            raise TreadleError(message, self._where, f"at most {MOST_ACCUMULATORS}")
        return nest

    def _name_axes(self, op: AxesOp) -> None:
        spatial, reduction = op.spatial.value.data, op.reduction.value.data
        if (spatial, reduction) != (self._spatial, len(self._extents) - self._spatial):
            accepted = f"{self._spatial} spatial, {len(self._extents) - self._spatial} reduction"
            raise TreadleError(f"it has {spatial} spatial and {reduction} reduction axes", self._where, accepted)
        for n, axis in enumerate(op.axes):
            self._axes[axis] = Axis(n, (self._extents[n],), n >= spatial)

    def _sample(self, op: SampleOp | SampleTileOp) -> None:
        label = op.label.data
        if label not in self._decisions:
            raise TreadleError(f"sample {label!r} is open", self._where, "a decision for each sample")
        taken = self._decisions[label]
        if isinstance(op, SampleOp):
            if taken not in op.support or not isinstance(taken, int):
                raise TreadleError(f"sample {label!r} takes {taken}", self._where, [str(v) for v in op.support])
            self._numbers[op.param] = taken
            return
        extent = self._axes[op.axis].extent if op.axis is not None else 1
        beside = prod(self._numbers[value] for value in op.beside)
        if not isinstance(taken, tuple) or taken not in op.support(extent, beside):
            accepted = "factors whose product is within its bounds"
            raise TreadleError(f"sample {label!r} takes {taken}", self._where, accepted)
        self._numbers.update(zip(op.params, taken, strict=True))

    def _split(self, op: SplitOp) -> None:
        axis, inner = self._axes[op.axis], values_of(op.factors, self._numbers)
        trips = [ceil(axis.extent / prod(inner)), *inner]
        for n, value in enumerate(op.levels):
            self._levels[value] = Level(axis, trips[n], prod(trips[n + 1 :]))

    def _fuse(self, op: FuseOp) -> None:
        parts = [self._axes[value] for value in op.axes]
        shape = tuple(extent for part in parts for extent in part.shape)
        self._axes[op.axis] = Axis(parts[0].first, shape, parts[0].is_reduction)

    def _mark(self, op: MarkOp) -> None:
        level = self._level(op.level)
        if op.mark.data == "vector" and level.axis.is_reduction:
            raise TreadleError("a reduction level is marked vector, which is not built yet", self._where, "unroll")
        unroll, vector = level.unroll or op.mark.data == "unroll", level.vector or op.mark.data == "vector"
        self._levels[op.level] = Level(level.axis, level.trips, level.stride, unroll, vector)

    def _level(self, value: SSAValue) -> Level:
        """A level of a split, or a whole axis as its only level."""
        if value not in self._levels:
            axis = self._axes[value]
            self._levels[value] = Level(axis, axis.extent, 1)
        return self._levels[value]


__all__ = ["Axis", "Group", "Level", "Nest", "nest_of"]
