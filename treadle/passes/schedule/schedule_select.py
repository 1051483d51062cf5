"""schedule-select: decides how each group is scheduled."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from treadle.dialects.graph import FusedOp
from treadle.dialects.location import location_of
from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.host import hardware_of
from treadle.passes.schedule.anchor import anchor_of
from treadle.passes.schedule.group_program import group_program
from treadle.schedules.default_template import default_template
from treadle.schedules.search.database import Database
from treadle.schedules.search.database_files import open_database, slug
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
    database: the folder of tuned schedules. An entry that cannot be used, since it is damaged or today's templates
        reject it, is named in a warning on stderr, and the default is taken.
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
                fused.schedule = default_schedule(fused, target) if found is None else found


def default_schedule(fused: FusedOp, target: Target) -> UseAttr:
    """The first template that fits the group's anchor, with its default choices; TreadleError if none does."""
    anchor = anchor_of(fused)
    template = default_template(anchor, target)
    if template is not None:
        return UseAttr.get(template.name, template.default(anchor, target))
    raise TreadleError(f"no template for {target.name} schedules {anchor.name} of {anchor.type}", location_of(anchor))


def tuned_schedule(fused: FusedOp, target: Target, database: Database) -> UseAttr | None:
    """The group's decision in a database; None if it has none, or one that is not legal, with a warning on stderr."""
    try:
        entry = database.find(group_program(fused).digest(), hardware_of(target))
        if entry is None:
            return None
        check_use(fused, entry.use, target, str(entry.path))
    except TreadleError as error:
        print(f"warning: group {fused.label.data!r} takes its default schedule: {error}", file=sys.stderr)
        return None
    return entry.use


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
