"""schedule-select: decides how each group is scheduled."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import FusedOp
from treadle.dialects.location import location_of
from treadle.dialects.schedule import ProgramOp, UseAttr
from treadle.errors import TreadleError
from treadle.host import hardware_of
from treadle.passes.schedule.anchor import anchor_of
from treadle.passes.schedule.group_program import group_program
from treadle.schedules.default_template import default_template
from treadle.schedules.search.database import Database
from treadle.schedules.search.database_files import open_database, slug
from treadle.schedules.search.programs import decisions_of, replay
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target


@dataclass(frozen=True)
class ScheduleSelectPass(ModulePass):
    """Writes a decision on every group that has none: the one in the database, or else the default.

    ```mlir
    %y = graph.fused "matmul" { ... } : tensor<128x768xf32>
    ```
    becomes
    ```mlir
    %y = graph.fused "matmul" { ... } schedule #schedule.use<"matmul_cpu", {rows = 8, chunk = 64, pack = false}> : ...
    ```
    target: the text of a target, `cpu` or `sm_80` and so on.
    database: the folder of tuned schedules. A program of an entry is put into the module, and the group names it. An
        entry that cannot be used, since it is damaged or is not legal today, is named in a warning on stderr, and the
        default is taken.
    """

    name = "schedule-select"
    target: str = "cpu"
    database: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        tuned = _opened(Path(self.database), target) if self.database else None
        for fused in [inner for inner in op.walk() if isinstance(inner, FusedOp)]:
            if fused.schedule is None:
                found = None if tuned is None else tuned_schedule(fused, target, tuned)
                found = found or default_schedule(fused, target)
                fused.schedule = found if isinstance(found, UseAttr) else add_program(op, found)


def default_schedule(fused: FusedOp, target: Target) -> UseAttr:
    """The first template that fits the group's anchor, with its default choices; TreadleError if none does."""
    anchor = anchor_of(fused)
    template = default_template(anchor, target)
    if template is not None:
        return UseAttr.get(template.name, template.default(anchor, target))
    raise TreadleError(f"no template for {target.name} schedules {anchor.name} of {anchor.type}", location_of(anchor))


def tuned_schedule(fused: FusedOp, target: Target, database: Database) -> UseAttr | ProgramOp | None:
    """The group's decision in a database; None if it has none, or one that is not legal, with a warning on stderr."""
    try:
        entry = database.find(group_program(fused).digest(), hardware_of(target))
        if entry is None:
            return None
        where = str(entry.path)
        if isinstance(entry.schedule, UseAttr):
            check_use(fused, entry.schedule, target, where)
        else:
            check_program(fused, entry.schedule, target, where)
    except TreadleError as error:
        print(f"warning: group {fused.label.data!r} takes its default schedule: {error}", file=sys.stderr)
        return None
    return entry.schedule


def add_program(module: ModuleOp, program: ProgramOp) -> SymbolRefAttr:
    """Puts a copy of a program in front of a module's functions, under a name that is free; its symbol.

    A program that the module has already is not added again.
    """
    block = module.body.block
    known = {op.sym_name.data: op for op in block.ops if isinstance(op, ProgramOp)}
    taken = {op.sym_name.data for op in block.ops if isinstance(op, ProgramOp | FuncOp)}
    copy, name = program.clone(), program.sym_name.data
    for number in count(1):
        if name in known and known[name].is_structurally_equivalent(copy):
            return SymbolRefAttr(name)
        if name not in taken:
            break
        name = f"{program.sym_name.data}_{number}"
        copy.sym_name = StringAttr(name)
    after = next((op for op in block.ops if not isinstance(op, ProgramOp)), None)
    Rewriter.insert_op(copy, InsertPoint.at_end(block) if after is None else InsertPoint.before(after))
    return SymbolRefAttr(name)


def check_program(fused: FusedOp, program: ProgramOp, target: Target, where: str) -> None:
    """TreadleError unless a program and the decisions that it has taken are legal for a group."""
    try:
        replay(program, decisions_of(program), anchor_of(fused), target)
    except TreadleError as error:
        raise TreadleError(error.message, where, error.accepted) from error


def check_use(fused: FusedOp, use: UseAttr, target: Target, where: str) -> None:
    """TreadleError unless a decision is legal for a group: its template exists, fits, and allows the choices."""
    template = TEMPLATES.get(use.template.data)
    if template is None:
        raise TreadleError(f"unknown template {use.template.data!r}", where, sorted(TEMPLATES))
    template.check(anchor_of(fused), use.knobs(), target, where)


def _opened(folder: Path, target: Target) -> Database:
    """The database; where it has nothing for the target's hardware, a warning on stderr says what it has."""
    database = Database(open_database(folder).folder)
    known, wanted = database.hardware(), slug(hardware_of(target))
    if wanted not in known:
        has = ", ".join(known) or "nothing"
        print(f"warning: {folder} has no schedules for {wanted}, only for {has}; defaults are taken", file=sys.stderr)
    return database
