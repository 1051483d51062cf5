"""schedule-select: decides how each group is scheduled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.artifact.cache import kernel_fingerprint
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.location import location_of
from treadle.dialects.schedule import MOST_KERNELS, DispatchAttr, ProgramOp, UseAttr
from treadle.errors import TreadleError
from treadle.passes.graph.graph_required_regions import Extents, enclosing_function, extents_of, required_within
from treadle.passes.schedule.construct import (
    constructed,
    constructed_range,
    decision,
    default_programs,
    search_of,
    template_programs,
)
from treadle.passes.schedule.instance import (
    SYMBOLS,
    anchor_of,
    group_program,
    instance_of,
    needed_shape,
    needed_terms,
    ranged_group_program,
)
from treadle.schedules.default_template import default_template
from treadle.schedules.joint import POINTS, Chosen, Point, Weights, chosen_dispatch, points_of, predicted, throughput
from treadle.schedules.register_tile import SHORT_HEIGHTS
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.database import Database, Dispatched, Entry, Schedule
from treadle.schedules.search.database_files import open_database, slug
from treadle.schedules.search.predict import UNHIDDEN, cpu_seconds, predicted_seconds
from treadle.schedules.search.product_work import blocks_of, product_work, right_loads
from treadle.schedules.search.programs import Replayed, decisions_of, replay
from treadle.schedules.template import Choices, Template
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.matmul_cpu import MatmulCpu, equal_panels
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of
from treadle.shapes.dim import parse_dim
from treadle.target import Target
from treadle.target.host import hardware_of
from treadle.target.options import Construction, parse_construction

# Which kernels a product of a ranged model gets: those that a cost model predicts to be worth dispatching among.

LEAST_GAIN = 0.1
"""The part of its throughput, relative to the best micro-kernel's and averaged over the points, by which a further
kernel has to raise that of a group: docs/adr/0046 has the measurement."""
LEAST_LOSS = 0.05
"""The part of its points' time that a leaf of the tree may lose; assumed, half of the above."""
_Instance: TypeAlias = tuple[tuple[int, ...], int]
"""The extents of a product's result, and its terms."""


class RangedSchedules:
    """The kernels of a module's groups; those of equal groups are chosen once."""

    def __init__(self, target: Target):
        self._target = target
        self._known: dict[tuple[str, str], UseAttr | DispatchAttr] = {}

    def of(self, fused: FusedOp, default: UseAttr) -> UseAttr | DispatchAttr:
        """What `ranged_schedule` says of a group."""
        if fused.required_regions is None:
            return default
        key = group_program(fused).digest(), str(fused.required_regions)
        if key not in self._known:
            self._known[key] = ranged_schedule(fused, self._target, default)
        return self._known[key]


def ranged_schedule(fused: FusedOp, target: Target, default: UseAttr) -> UseAttr | DispatchAttr:
    """The kernels of a group whose result is needed in part: the default one, or several with a tree over extents.

    Candidates are what the templates take by default for the product's extents at some points of the range; each is
    predicted at every point, with the rounds and the padding that it has there. The first kernel is the default one,
    or one whose panels are all equal, where the default's last panel is narrower and the kernels' throughput is higher
    with the other. Groups of other anchors, whose schedules do not depend on such extents or are not predicted, have
    their default.
    """
    points = module_points(fused)
    times = PointTimes.of(fused, points, target)
    if times is None or len(times.instances) < 2:
        return default
    first = [default, *_equal_panels(times.anchor, default, target)]
    uses = list(dict.fromkeys([*first, *_defaults(times.anchor, list(times.instances.values()), target)]))
    if len(uses) == 1:
        return default
    table = {use: times.of_use(use) for use in uses}
    if inf in table[default]:
        return default
    found = [chosen_dispatch(table, points, LEAST_GAIN, LEAST_LOSS, MOST_KERNELS, use) for use in first]
    weights = [point.weight for point in points]
    chosen = max(found, key=lambda each: throughput(table, weights, each.kernels))
    return chosen.kernels[0] if len(chosen.kernels) == 1 else dispatch_of(chosen, points, table)


def dispatch_of(
    chosen: Chosen[UseAttr], points: Sequence[Point], table: Mapping[UseAttr, Sequence[float]]
) -> DispatchAttr:
    """A choice as a decision, with what was predicted."""
    return DispatchAttr.get(chosen.tree, chosen.kernels, predicted(table, chosen.kernels, points))


def symbols_of(fused: FusedOp) -> tuple[str, ...]:
    """The ranges of the symbols of a group's module, as texts."""
    main = enclosing_function(fused)
    return () if main is None else tuple(_texts(main, SYMBOLS))


def module_points(fused: FusedOp, weights: Weights | None = None, most: int = POINTS) -> list[Point]:
    """At most so many points of the range of a group's module; none without a range."""
    main, symbols = enclosing_function(fused), [parse_dim(text) for text in symbols_of(fused)]
    if main is None or not symbols or not extents_of(main):
        return []
    return points_of(symbols, _texts(main, "extents"), weights, most)


def _texts(main: FuncOp, name: str) -> list[str]:
    given = main.attributes.get(name)
    texts = given.data if isinstance(given, ArrayAttr) else ()
    return [each.data for each in texts if isinstance(each, StringAttr)]


def point_defaults(fused: FusedOp, points: Sequence[Point], target: Target) -> list[UseAttr]:
    """The defaults of a group's product at some points, as far as they are legal for the group; none without one."""
    anchor = anchor_of(fused)
    if not isinstance(anchor, MatmulOp):
        return []
    required = required_within(fused, anchor.result)
    shapes = dict.fromkeys(needed_shape(anchor.shape, required, point.extents) for point in points)
    found = _defaults(anchor, [instance_of(anchor, shape) for shape in shapes], target)
    return list(dict.fromkeys(found))


def _defaults(anchor: MatmulOp, instances: Sequence[MatmulOp], target: Target) -> list[UseAttr]:
    """The defaults of some instances, as far as they are legal for the product itself."""
    defaults: dict[object, tuple[Template, Choices]] = {}
    for instance in instances:
        template = default_template(instance, target)
        if template is not None and template.fits(anchor):
            default = template.canonical(instance, template.default(instance, target), target)
            defaults[template.name, *default.items()] = template, default
    found: list[UseAttr] = []
    for template, default in defaults.values():
        choices = template.of_part(anchor, {**default, **template.decided(anchor, target)}, target)
        try:
            template.check(anchor, choices, target, "")
        except TreadleError:
            continue
        found.append(UseAttr.get(template.name, choices))
    return found


def _equal_panels(anchor: MatmulOp, default: UseAttr, target: Target) -> list[UseAttr]:
    """The default on a CPU with panels that are all equal, where the last one is narrower, which is code of its own."""
    if default.template.data != MatmulCpu.name:
        return []
    return [UseAttr.get(MatmulCpu.name, choices) for choices in equal_panels(anchor, default.knobs(), target)]


class PointTimes:
    """The predicted seconds of a product's kernels at points of a range: with the rounds and the padding that blocks of
    the whole product's kernel have for the extents of each.

    A micro-kernel is one for all points: what a block does is known from the whole product, and a point decides how
    many of them there are, and how much of their work is padding. Source: DietCode (MLSys 2022), equations 2 and 3.
    """

    def __init__(self, anchor: MatmulOp, points: Sequence[Point], keys: Sequence[_Instance], target: Target):
        self.anchor, self._target, self._keys = anchor, target, keys
        self._weights = [point.weight for point in points]
        self.instances = {(shape, terms): instance_of(anchor, shape, terms=terms) for shape, terms in keys}
        self._whole: _Instance = (tuple(anchor.shape), anchor.reduction_extent)

    @classmethod
    def of(cls, fused: FusedOp, points: Sequence[Point], target: Target) -> PointTimes | None:
        """None for another anchor than a product, and where all points need all of it."""
        anchor, main = anchor_of(fused), enclosing_function(fused)
        if not points or not isinstance(anchor, MatmulOp):
            return None
        required = required_within(fused, anchor.result)
        extents: Extents = {} if main is None or target.kind != "cpu" else extents_of(main)
        keys = [
            (needed_shape(anchor.shape, required, point.extents), needed_terms(anchor, point.extents, extents))
            for point in points
        ]
        found = cls(anchor, points, keys, target)
        return found if found.instances.keys() != {found._whole} else None

    def of_use(self, use: UseAttr) -> list[float]:
        """The seconds of a template's kernel at each point; infinite where nothing predicts it."""
        seconds = self._of_use(use, self.instances)
        return [seconds[key] for key in self._keys]

    def mean(self, candidate: Candidate, search: Task) -> float:
        """The mean over the calls that the points stand for, as a part of what the whole product takes; infinite where
        nothing predicts that. Of nests, each point is predicted as a product of its own.

        search: of the whole product; TreadleError for a candidate that is not legal
        """
        seconds = self._of_candidate(candidate, search, {**self.instances, self._whole: self.anchor})
        if inf in seconds.values():
            return inf
        total = sum(weight * seconds[key] for key, weight in zip(self._keys, self._weights, strict=True))
        return total / seconds[self._whole]

    def at(self, candidate: Candidate, search: Task, number: int) -> float:
        """The seconds at one point, as `mean` predicts them; infinite where nothing predicts them."""
        key = self._keys[number]
        return self._of_candidate(candidate, search, {key: self.instances[key]})[key]

    def _of_candidate(
        self, candidate: Candidate, search: Task, instances: Mapping[_Instance, MatmulOp]
    ) -> dict[_Instance, float]:
        replayed = search.replay(candidate)
        if isinstance(replayed, UseAttr):
            return self._of_use(replayed, instances)
        program = search.by_name[candidate.program]
        of_point = partial(replay, program, candidate.decisions, target=self._target)
        return {key: self._seconds(of_point, each) for key, each in instances.items()}

    def _of_use(self, use: UseAttr, instances: Mapping[_Instance, MatmulOp]) -> dict[_Instance, float]:
        if use.template.data != MatmulCpu.name:
            return {key: self._seconds(lambda _: use, instance) for key, instance in instances.items()}
        choices, target = use.knobs(), self._target
        grid, loads = blocks_of(self.anchor, choices, target), right_loads(self.anchor, choices, target)
        works = {
            key: product_work(each, choices, target, SHORT_HEIGHTS, grid, loads) for key, each in instances.items()
        }
        return {key: cpu_seconds(work, target, UNHIDDEN) for key, work in works.items()}

    def _seconds(self, replayed: Callable[[MatmulOp], Replayed], instance: MatmulOp) -> float:
        """Of the kernel that an instance gets, whose blocks are as large as those of the whole product's; infinite for
        one that is not legal."""
        try:
            return predicted_seconds(work_of(Group(instance), replayed(instance), self._target), self._target)
        except TreadleError:
            return inf


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
    A product of a ranged model gets a `#schedule.dispatch` of several kernels where the cost model says that these
    serve the range better than one.
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
                elif fused.required_regions is None:
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
        if times is None:
            return None
        kernels = untuned.alternatives.data if isinstance(untuned, DispatchAttr) else (untuned,)
        uses = [each for each in kernels if isinstance(each, UseAttr)]
        task, _ = self._search(fused, uses[0])
        known = [task.candidate(use) for use in uses if use.template.data in task.by_name]
        return constructed_range(task, known, points, times, self._construction, _choose)

    def _search(self, fused: FusedOp, default: UseAttr) -> tuple[Task, Candidate]:
        written = template_programs if self._construction == "exhaustive" else default_programs
        return search_of(fused, default, self._target, written)


def _choose(
    table: Mapping[Candidate, Sequence[float]], points: Sequence[Point], default: Candidate
) -> Chosen[Candidate]:
    return chosen_dispatch(table, points, LEAST_GAIN, LEAST_LOSS, MOST_KERNELS, default)


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
