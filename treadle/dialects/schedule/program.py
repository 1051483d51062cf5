"""A schedule as a program: instructions that build it up, and the levels that they arrange in one nest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from xdsl.dialects.builtin import StringAttr, SymbolNameConstraint
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, region_def, traits_def
from xdsl.traits import IsolatedFromAbove, NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.schedule.sampling import SampleOp, SampleTileOp
from treadle.dialects.schedule.staging import MarkOp, StageOp, SwizzleOp, TemplateOp, UnrollOp
from treadle.dialects.schedule.tiling import ArrangeOp, AxesOp, FuseOp, Role, SplitOp
from treadle.dialects.syntax import Body

# What the levels of a schedule program are: pieces of axes, each used up once, arranged in one nest.


@dataclass(frozen=True)
class Level:
    """Some dimensions of the anchor, or one level of them.

    first, last: the dimensions, inclusive; depth: 0 for the outermost level; count: of levels, 1 for a whole axis
    """

    first: int
    last: int
    is_reduction: bool
    depth: int = 0
    count: int = 1


def check_nest(instructions: Sequence[Operation], kind: str) -> None:
    """VerifyException for what `schedule.program` rejects of axes and levels."""
    levels, used = levels_of(instructions)
    arranges = [op for op in instructions if isinstance(op, ArrangeOp)]
    for arrange in arranges:
        _check_roles(arrange, levels, kind)
        placed = list(arrange.levels)
        left = [value for value in levels if value not in used and value not in placed]
        if left:
            raise VerifyException(f"level {_name(left[0])} has no role in schedule.arrange")
        _check_order(placed, levels)
        for op in instructions:
            if isinstance(op, StageOp):
                _check_stage(op, arrange, kind)
            elif isinstance(op, MarkOp):
                _check_mark(op, arrange)
            elif isinstance(op, SwizzleOp):
                _check_swizzle(op, arrange, kind)
    for once in (UnrollOp, SwizzleOp):
        if sum(isinstance(op, once) for op in instructions) > 1:
            raise VerifyException(f"{once.name} comes once")
    kinds = StageOp | MarkOp | UnrollOp | SwizzleOp | SplitOp | FuseOp
    marked = [op.name for op in instructions if isinstance(op, kinds)]
    if marked and any(isinstance(op, TemplateOp) for op in instructions):
        raise VerifyException(f"{marked[0]} beside schedule.template, which schedules all")


def levels_of(instructions: Sequence[Operation]) -> tuple[dict[SSAValue, Level], set[SSAValue]]:
    """Every axis and level, and those that a split, a fusion or the arrangement has used up.

    VerifyException for one that is used up twice, and for what `schedule.fuse` cannot fuse.
    """
    levels: dict[SSAValue, Level] = {}
    used: set[SSAValue] = set()
    placed: set[SSAValue] = set()
    for op in instructions:
        consumed: Sequence[SSAValue] = ()
        if isinstance(op, AxesOp):
            spatial = op.spatial.value.data
            levels |= {axis: Level(n, n, n >= spatial) for n, axis in enumerate(op.axes)}
        elif isinstance(op, SplitOp):
            consumed = [op.axis]
            levels |= _split(op, levels)
        elif isinstance(op, FuseOp):
            consumed = op.axes
            levels[op.axis] = _fused(op, levels)
        elif isinstance(op, ArrangeOp):
            consumed = op.levels
        for value in consumed:
            if value in used or value in placed:
                raise VerifyException(f"axis {_name(value)} is used up twice")
            (placed if isinstance(op, ArrangeOp) else used).add(value)
    return levels, used


def _split(op: SplitOp, levels: dict[SSAValue, Level]) -> dict[SSAValue, Level]:
    axis = levels[op.axis]
    if axis.count > 1:
        raise VerifyException(f"axis {_name(op.axis)} is a level of a split: expected a whole axis")
    count = len(op.levels)
    return {
        value: Level(axis.first, axis.last, axis.is_reduction, depth, count) for depth, value in enumerate(op.levels)
    }


def _fused(op: FuseOp, levels: dict[SSAValue, Level]) -> Level:
    parts = [levels[axis] for axis in op.axes]
    for axis, part in zip(op.axes, parts, strict=True):
        if part.count > 1:
            raise VerifyException(f"axis {_name(axis)} is a level of a split: expected a whole axis")
    for before, after in pairwise(parts):
        if before.last + 1 != after.first or before.is_reduction != after.is_reduction:
            raise VerifyException("schedule.fuse takes neighbouring axes of one kind")
    return Level(parts[0].first, parts[-1].last, parts[0].is_reduction)


def _check_roles(arrange: ArrangeOp, levels: dict[SSAValue, Level], kind: str) -> None:
    groups = arrange.groups
    roles: list[Role] = [role for role, _ in groups]
    if "block" in roles[1:]:
        raise VerifyException("the role block comes once, first")
    if kind == "cpu" and {"thread", "mma"} & set(roles):
        raise VerifyException("a CPU has no threads in a block and no warps: expected block, repeat and loop")
    split_k = [level for role, values in groups if role == "block" for level in values if levels[level].is_reduction]
    if len(split_k) > 1:
        raise VerifyException("two reduction levels are in block")
    if "mma" in roles:
        _check_product(groups, levels)
    for role, values in groups:
        for value in values:
            if role == "loop" and not levels[value].is_reduction:
                raise VerifyException(f"spatial level {_name(value)} is in loop: expected repeat")
            if role == "repeat" and levels[value].is_reduction:
                raise VerifyException(f"reduction level {_name(value)} is in repeat: expected loop")


def _check_product(groups: Sequence[tuple[Role, Sequence[SSAValue]]], levels: dict[SSAValue, Level]) -> None:
    """`mma` is the last group: rows, columns and terms."""
    *outer, (role, values) = groups
    if role != "mma" or any(each == "mma" for each, _ in outer):
        raise VerifyException("the role mma comes once, last")
    kinds, axes = [levels[value].is_reduction for value in values], {levels[value].first for value in values}
    if kinds != [False, False, True] or len(axes) < len(kinds):
        raise VerifyException("mma takes a level of each of two spatial axes, then one of a reduction axis")


def _check_order(placed: Sequence[SSAValue], levels: dict[SSAValue, Level]) -> None:
    """Levels of an axis stand outermost first."""
    depths: dict[int, int] = {}
    for value in placed:
        level = levels[value]
        if level.depth < depths.get(level.first, 0):
            raise VerifyException(f"level {_name(value)} stands inside of an inner level of its axis")
        depths[level.first] = level.depth


def _check_stage(op: StageOp, arrange: ArrangeOp, kind: str) -> None:
    roles = [(level, _role(level, arrange, op.name)) for level in op.levels]
    if op.memory.data == "shared" and kind == "cpu":
        raise VerifyException("a CPU has no shared memory: expected register")
    for level, role in roles:
        if role not in ("block", "loop"):
            raise VerifyException(
                f"schedule.stage at {_name(level)}, which is in {role}: expected a level in block or loop"
            )


def _check_mark(op: MarkOp, arrange: ArrangeOp) -> None:
    _role(op.level, arrange, op.name)
    if op.mark.data == "vector" and op.level is not arrange.levels[-1]:
        raise VerifyException(f"level {_name(op.level)} is marked vector, and is not innermost")


def _check_swizzle(op: SwizzleOp, arrange: ArrangeOp, kind: str) -> None:
    """Rows and columns are neighbours in `block`, in this order."""
    if kind == "cpu":
        raise VerifyException("schedule.swizzle of a CPU, whose blocks run by threads in their order")
    _, blocks = arrange.groups[0]
    if _role(op.rows, arrange, op.name) != "block" or (op.rows, op.columns) not in pairwise(blocks):
        raise VerifyException(
            f"schedule.swizzle of {_name(op.rows)} and {_name(op.columns)}: expected neighbours in block"
        )


def _role(level: SSAValue, arrange: ArrangeOp, name: str) -> Role:
    for role, values in arrange.groups:
        if level in values:
            return role
    raise VerifyException(f"{name} at {_name(level)}, which has no role in schedule.arrange")


def _name(value: SSAValue) -> str:
    return f"%{value.name_hint}" if value.name_hint else "without a name"


KINDS = ("cpu", "cuda")


@irdl_op_definition
class ProgramOp(IRDLOperation):
    """How one group, or all that name it, are scheduled: a nest of levels, or a template.

    ```mlir
    schedule.program @dense for "cpu" {
      %i, %j, %k = schedule.axes 2 spatial, 1 reduction
      %r = schedule.sample "rows" from [4, 6, 8] taken 8
      %i0, %i1 = schedule.split %i by (%r)
      %j0, %j1 = schedule.split %j by (32)
      schedule.arrange block(%i0, %j0) loop(%k) repeat(%i1, %j1)
      schedule.mark vector %j1
    }
    schedule.program @tiled for "cuda" {
      %b = schedule.sample "block" from [[64, 64], [128, 128]]
      schedule.template "matmul_mma" {block = %b}
    }
    ```
    The instructions do not change loops: replayed, they build up a value, from which a kernel is written once.
    Rejected: another operation; two samples of one name; not exactly one `arrange` or `template`; an axis that is used
    up twice, or a level that has no role; levels of an axis out of order; `block` that is not first; a spatial level in
    `loop`, a reduction level in `repeat`, two of them in `block`; `mma` that is not last, or not of two spatial levels
    and one of the reduction; threads, shared memory and `mma` of a CPU; a stage at a level of the register tile; a
    vector that is not innermost; two limits of unrolling; two swizzles, or one of levels that are no neighbours in
    `block`, or of a CPU.
    """

    name = "schedule.program"
    sym_name = prop_def(SymbolNameConstraint())
    kind = prop_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), NoTerminator(), SymbolOpInterface())
    custom_directives = (Body,)
    assembly_format = "$sym_name `for` $kind attr-dict-with-keyword custom<Body>($body)"

    def __init__(self, name: str, kind: str, body: Region | Sequence[Operation]):
        region = body if isinstance(body, Region) else Region(Block(body))
        super().__init__(properties={"sym_name": StringAttr(name), "kind": StringAttr(kind)}, regions=[region])

    @property
    def instructions(self) -> list[Operation]:
        """In order."""
        return list(self.body.block.ops)

    @property
    def samples(self) -> list[SampleOp | SampleTileOp]:
        """What is decided, in order."""
        return [op for op in self.instructions if isinstance(op, SampleOp | SampleTileOp)]

    @property
    def template(self) -> TemplateOp | None:
        """The template that schedules all, if it is one."""
        return next((op for op in self.instructions if isinstance(op, TemplateOp)), None)

    def verify_(self) -> None:
        if self.kind.data not in KINDS:
            raise VerifyException(f"unknown kind of target {self.kind.data!r}: expected {', '.join(KINDS)}")
        foreign = [op.name for op in self.instructions if not op.name.startswith("schedule.") or op.regions]
        if foreign:
            raise VerifyException(f"'{foreign[0]}' is no instruction of a schedule")
        labels = [op.label.data for op in self.samples]
        twice = [label for label in labels if labels.count(label) > 1]
        if twice:
            raise VerifyException(f"two samples are called {twice[0]!r}")
        ends = [op.name for op in self.instructions if isinstance(op, ArrangeOp | TemplateOp)]
        if len(ends) != 1:
            had = " and ".join(ends) or "neither"
            raise VerifyException(f"expected one schedule.arrange or one schedule.template, got {had}")
        axes = [n for n, op in enumerate(self.instructions) if isinstance(op, AxesOp)]
        if axes not in ([], [0]):
            raise VerifyException("schedule.axes comes once, as the first instruction")
        check_nest(self.instructions, self.kind.data)
