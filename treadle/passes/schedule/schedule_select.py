"""schedule-select: decides how each group is scheduled."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.artifact.cache import kernel_fingerprint
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.location import location_of
from treadle.dialects.schedule import DispatchAttr, ProgramOp, UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.construct import (
    constructed,
    constructed_range,
    decision,
    default_programs,
    search_of,
    template_programs,
)
from treadle.passes.schedule.instance import (
    anchor_of,
    group_program,
    ranged_group_program,
)
from treadle.passes.schedule.ranged_schedule import (
    PointTimes,
    RangedSchedules,
    depends_on_call,
    module_points,
    symbols_of,
)
from treadle.schedules.default_template import default_template
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.database import Database, Dispatched, Entry, Schedule
from treadle.schedules.search.database_files import open_database, slug
from treadle.schedules.search.programs import decisions_of, replay
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target
from treadle.target.host import hardware_of
from treadle.target.options import Construction, parse_construction


@dataclass(frozen=True)
class ScheduleSelectPass(ModulePass):
    """Writes a decision on every group that has none: the one in the database, or else the default.

    ```mlir
    %y = graph.fused "matmul" { ... } : tensor<128x768xf32>
    ```
    becomes
    ```mlir
    %y = graph.fused "matmul" { ... } schedule #schedule.use<"matmul_cpu", {rows = 8, ...}> : tensor<128x768xf32>
    ```
    A group of a ranged model gets a `#schedule.dispatch` of several kernels where the cost model says that these serve
    the range better than one.
    target: the text of a target, `cpu` or `sm_80` and so on.
    database: the folder of tuned schedules. A program of an entry is put into the module, and the group names it. An
        entry that cannot be used, since it is damaged or is not legal today, is named in a warning on stderr, and the
        default is taken.
    construct: how a group that has no entry gets its schedule: `default`, or the strategy of a search (`walk`,
        `walk-paper`, `greedy`, `evolution`, `evolution-annealed`, or `exhaustive` over the templates' spaces) whose
        first proposal is taken if it is predicted to be 5 % faster than the default. A product of a ranged model has
        proposals for several calls of the range, among which and its defaults it dispatches. Nothing is built or timed.
    """

    name = "schedule-select"
    target: str = "cpu"
    database: str = ""
    construct: str = "default"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        tuned = _opened(Path(self.database), target) if self.database else None
        used: list[Entry] = []
        ranged, searched = RangedSchedules(target), _Constructions(target, parse_construction(self.construct))
        for fused in [inner for inner in op.walk() if isinstance(inner, FusedOp)]:
            if fused.schedule is None:
                entry = None if tuned is None else tuned_entry(fused, target, tuned)
                used += [] if entry is None else [entry]
                if entry is not None:
                    fused.schedule = placed(op, entry.schedule)
                elif not depends_on_call(fused):
                    fused.schedule = _placed_one(op, searched.of(fused))
                else:
                    untuned = ranged.of(fused, default_schedule(fused, target))
                    found = searched.of_range(fused, untuned)
                    fused.schedule = untuned if found is None else placed(op, found)
        _warn_of_stale(used, self.database)


class _Constructions:
    """The schedules that are chosen by predicted time; those of equal groups are searched once."""

    def __init__(self, target: Target, construction: Construction):
        self._target, self._construction = target, construction
        self._known: dict[str, UseAttr | ProgramOp] = {}
        self._of_ranges: dict[tuple[str, str], Schedule | None] = {}

    def of(self, fused: FusedOp) -> UseAttr | ProgramOp:
        """The schedule of a group."""
        default = default_schedule(fused, self._target)
        if self._construction == "default":
            return default
        digest = group_program(fused).digest()
        if digest not in self._known:
            task, candidate = self._search(fused, default)
            found = constructed(task, candidate, self._construction)
            self._known[digest] = default if found == candidate else decision(task, found)
        return self._known[digest]

    def of_range(self, fused: FusedOp, untuned: UseAttr | DispatchAttr) -> Schedule | None:
        """The kernels of a group of a ranged model, if it gets others than those that it has without a construction."""
        if self._construction == "default":
            return None
        key = group_program(fused).digest(), str(fused.required_regions)
        if key not in self._of_ranges:
            self._of_ranges[key] = self._constructed_range(fused, untuned)
        return self._of_ranges[key]

    def _constructed_range(self, fused: FusedOp, untuned: UseAttr | DispatchAttr) -> Schedule | None:
        points = module_points(fused)
        times = PointTimes.of(fused, points, self._target)
        if times is None or not isinstance(times.anchor, MatmulOp):
            return None
        kernels = untuned.alternatives.data if isinstance(untuned, DispatchAttr) else (untuned,)
        uses = [each for each in kernels if isinstance(each, UseAttr)]
        task, default = self._search(fused, default_schedule(fused, self._target))
        known = [task.candidate(use) for use in uses if task.tries(use)] or [default]
        return constructed_range(task, known, points, times, self._construction)

    def _search(self, fused: FusedOp, default: UseAttr) -> tuple[Task, Candidate]:
        written = template_programs if self._construction == "exhaustive" else default_programs
        return search_of(fused, default, self._target, written)


def default_schedule(fused: FusedOp, target: Target) -> UseAttr:
    """The first template that fits the group's anchor, with its default choices; TreadleError if none does."""
    anchor = anchor_of(fused)
    template = default_template(anchor, target)
    if template is not None:
        return UseAttr.get(template.name, template.default(anchor, target))
    raise TreadleError(f"no template for {target.name} schedules {anchor.name} of {anchor.type}", location_of(anchor))


def tuned_entry(fused: FusedOp, target: Target, database: Database) -> Entry | None:
    """The group's entry in a database; None if it has none, or one that is not legal, with a warning on stderr."""
    hardware = hardware_of(target)
    ranged = ranged_group_program(fused)
    for program in [group_program(fused)] if ranged is None else [ranged, group_program(fused)]:
        try:
            entry = database.find(program.digest(), hardware)
            if entry is not None:
                check_entry(entry, fused, target, hardware)
                return entry
        except TreadleError as error:
            print(f"warning: group {fused.label.data!r} takes its default schedule: {error}", file=sys.stderr)
            return None
    return None


def check_entry(entry: Entry, fused: FusedOp, target: Target, hardware: str) -> None:
    """TreadleError unless a group's entry was measured on some hardware, for the module's range if it was for any, and
    is legal today."""
    where = str(entry.path)
    if slug(entry.record.hardware) != slug(hardware):
        raise TreadleError(f"the entry was measured on {entry.record.hardware}", where, hardware)
    symbols = symbols_of(fused)
    if entry.symbols and entry.symbols != symbols:
        raise TreadleError(f"the entry was tuned for the range {', '.join(entry.symbols)}", where, ", ".join(symbols))
    kernels = entry.schedule.kernels if isinstance(entry.schedule, Dispatched) else (entry.schedule,)
    for kernel in kernels:
        if isinstance(kernel, UseAttr):
            check_use(fused, kernel, target, where)
        else:
            check_program(fused, kernel, target, where)


def placed(module: ModuleOp, schedule: Schedule) -> UseAttr | SymbolRefAttr | DispatchAttr:
    """An entry's schedule as a group of a module has it, with the programs that it names in the module."""
    if isinstance(schedule, Dispatched):
        alternatives = [_placed_one(module, kernel) for kernel in schedule.kernels]
        return DispatchAttr.get(schedule.tree, alternatives, schedule.predicted)
    return _placed_one(module, schedule)


def _placed_one(module: ModuleOp, schedule: UseAttr | ProgramOp) -> UseAttr | SymbolRefAttr:
    return schedule if isinstance(schedule, UseAttr) else add_program(module, schedule)


def _warn_of_stale(used: Sequence[Entry], database: str) -> None:
    """A line on stderr if schedules are used whose times were those of kernels that other sources wrote."""
    stale = [entry for entry in used if entry.record.sources != kernel_fingerprint()]
    if stale:
        how = f"{len(stale)} of {len(used)} schedules were measured with other versions of treadle"
        print(
            f"warning: {database}: {how}; they are used, and `treadle tune --stale` measures them anew", file=sys.stderr
        )


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
        error.where = where
        raise


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
