"""From a schedule program and what its samples took to a nest."""

from __future__ import annotations

from collections.abc import Mapping
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
    SwizzleOp,
    UnrollOp,
)
from treadle.dialects.schedule.sampling import values_of
from treadle.dialects.schedule.staging import Memory
from treadle.errors import TreadleError
from treadle.schedules.nest.nest import Axis, Group, Level, Nest, Stage, Swizzle, check_nest, check_staged, unrolled
from treadle.schedules.nest.workload import Workload
from treadle.target import Target


def nest_of(
    program: ProgramOp,
    decisions: Mapping[str, Choice],
    workload: Workload,
    target: Target,
    *,
    is_complete: bool = True,
) -> Nest:
    """Replays a program for a workload; one that is not complete may lack stages that tensor cores need.

    TreadleError for another kind of target, a sample without a decision, a factor out of its sample's support, axes
    that are not those of the workload, and what `check_nest` rejects; LimitError for what the target has too little of.
    """
    where = f"schedule program @{program.sym_name.data}"
    if program.kind.data != target.kind:
        message = f"it is a nest for {program.kind.data} targets, and the target is {target.name}"
        raise TreadleError(message, where, f"a nest for {target.kind} targets")
    nest = _Replay(where, dict(decisions), workload).run(program)
    check_nest(nest, target, where)
    if is_complete:
        check_staged(nest, where)
    return nest


class _Replay:
    """Instructions one after the other, each a change of what is known of axes and levels."""

    def __init__(self, where: str, decisions: Mapping[str, Choice], workload: Workload):
        self._where, self._decisions, self._workload = where, decisions, workload
        self._numbers: dict[SSAValue, int] = {}
        self._axes: dict[SSAValue, Axis] = {}
        self._levels: dict[SSAValue, Level] = {}

    def run(self, program: ProgramOp) -> Nest:
        """The finished nest."""
        arranged: ArrangeOp | None = None
        staged: list[StageOp] = []
        limit, swizzled = 0, list[SwizzleOp]()
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
                    staged.append(op)
                case UnrollOp():
                    (limit,) = values_of([op.limit], self._numbers)
                case SwizzleOp():
                    swizzled.append(op)
                case _:
                    raise TreadleError(f"{op.name} is no instruction of a nest", self._where, "schedule.arrange")
        if arranged is None:
            raise TreadleError("it has no schedule.arrange", self._where, "a program of a nest")
        groups = tuple(Group(role, tuple(map(self._level, levels))) for role, levels in arranged.groups)
        every = (self._stage(op, arranged) for op in staged)
        stages = sorted((each for each in every if each is not None), key=lambda stage: stage.compute_at)
        least = None if arranged.min_blocks_per_sm is None else arranged.min_blocks_per_sm.value.data
        swizzle = next((self._swizzle(op, arranged) for op in swizzled), None)
        checks = arranged.checks_borders is not None
        nest = Nest(self._workload, groups, tuple(stages), least, swizzle, checks)
        return unrolled(nest, limit) if limit else nest

    def _name_axes(self, op: AxesOp) -> None:
        spatial, reduction = op.spatial.value.data, op.reduction.value.data
        extents, expected = self._workload.extents, self._workload.spatial
        if (spatial, reduction) != (expected, len(extents) - expected):
            accepted = f"{expected} spatial, {len(extents) - expected} reduction"
            raise TreadleError(f"it has {spatial} spatial and {reduction} reduction axes", self._where, accepted)
        for n, axis in enumerate(op.axes):
            self._axes[axis] = Axis(n, (extents[n],), n >= spatial)

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
        unroll, vector = level.unroll or op.mark.data == "unroll", level.vector or op.mark.data == "vector"
        self._levels[op.level] = Level(level.axis, level.trips, level.stride, unroll, vector)

    def _swizzle(self, op: SwizzleOp, arranged: ArrangeOp) -> Swizzle | None:
        """None where it is the usual order: of one row or column, or groups of one row."""
        (group,) = values_of([op.group], self._numbers)
        rows, columns = self._level(op.rows).trips, self._level(op.columns).trips
        number = list(arranged.levels).index(op.rows)
        return Swizzle(number, min(group, rows)) if min(group, rows, columns) > 1 else None

    def _level(self, value: SSAValue) -> Level:
        """A level of a split, or a whole axis as its only level."""
        if value not in self._levels:
            axis = self._axes[value]
            self._levels[value] = Level(axis, axis.extent, 1)
        return self._levels[value]

    def _stage(self, op: StageOp, arranged: ArrangeOp) -> Stage | None:
        """Once a block, whichever block level the stage stands at; None at no level."""
        blocks = [level for role, levels in arranged.groups if role == "block" for level in levels]
        number, vector, buffers = values_of([op.place, op.vector, op.buffers], self._numbers)
        if number == 0:
            return None
        if not 0 < number <= len(op.levels):
            accepted = f"0 to {len(op.levels)}"
            raise TreadleError(f"a stage at place {number} of {len(op.levels)} levels", self._where, accepted)
        level = op.levels[number - 1]
        place = len(blocks) if level in blocks else list(arranged.levels).index(level) + 1
        memory: Memory = "shared" if op.memory.data == "shared" else "register"
        return Stage(op.read.value.data, place, memory, vector, buffers, op.is_async is not None)


__all__ = ["nest_of"]
