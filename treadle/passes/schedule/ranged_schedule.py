"""The kernels of a group of a ranged model: those that the cost model predicts to be worth dispatching among."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, prod

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.dialects.func import FuncOp

from treadle.dialects.graph import AttentionOp, ComputeOp, FusedOp, MatmulOp, PackedMatmulOp
from treadle.dialects.graph.append import states_of
from treadle.dialects.graph.extents import enclosing_function, extents_of
from treadle.dialects.schedule import MOST_KERNELS, DispatchAttr, UseAttr
from treadle.errors import TreadleError
from treadle.passes.graph.graph_required_regions import required_within
from treadle.passes.graph.required_shape import SYMBOLS, range_texts
from treadle.passes.schedule.instance import (
    CallShape,
    anchor_of,
    call_shape,
    group_program,
    instance_of,
    whole_shape,
)
from treadle.schedules.default_template import default_template
from treadle.schedules.joint import (
    POINTS,
    Adaption,
    AtPoint,
    Chosen,
    Point,
    Weights,
    busy,
    chosen_dispatch,
    points_of,
    predicted,
    spread,
    throughput,
)
from treadle.schedules.reduction_end import reduction_end
from treadle.schedules.register_tile import SHORT_HEIGHTS
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.predict import UNHIDDEN, cpu_seconds, places_of, predicted_seconds
from treadle.schedules.search.product_work import blocks_of, product_work, right_loads
from treadle.schedules.search.programs import Replayed, replay
from treadle.schedules.template import Anchor, Choices, Template
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.matmul_cpu import MatmulCpu, equal_panels
from treadle.schedules.templates.matmul_tiles_cpu import MatmulTilesCpu
from treadle.schedules.work.cpu_work import Work
from treadle.schedules.work.group import Group
from treadle.schedules.work.recorder import work_of
from treadle.shapes.dim import Dim, parse_dim
from treadle.target import Target

LEAST_GAIN = 0.1
"""The part of its throughput, relative to the best micro-kernel's and averaged over the points, by which a further
kernel has to raise that of a group: docs/adr/0046 has the measurement, of products."""
LEAST_GAIN_ON_UNIT = 0.03
"""The same of products on a core's matrix unit, whose times are predicted more exactly. One row of 896 x 4,864 and of
4,864 x 896, bf16, two cores of a Xeon with AMX, chunks of 16 and of 512 rows: predicted 302, 331 and 325, 388 us,
measured 321, 349 and 391, 470."""
LEAST_LOSS = 0.05
"""The part of its points' time that a leaf of the tree may lose; assumed, half of the above."""

_STEPS = 8
"""Values of a symbol beside the least, where calls are mostly steps."""
_PROBES = 4
"""Calls by which candidates are left out before the others are predicted at every point."""


class RangedSchedules:
    """The kernels of a module's groups; those of equal groups are chosen once."""

    def __init__(self, target: Target):
        self._target = target
        self._known: dict[tuple[str, str], UseAttr | DispatchAttr] = {}

    def of(self, fused: FusedOp, default: UseAttr) -> UseAttr | DispatchAttr:
        """What `ranged_schedule` says of a group."""
        key = group_program(fused).digest(), str(fused.required_regions)
        if key not in self._known:
            self._known[key] = ranged_schedule(fused, self._target, default)
        return self._known[key]


def depends_on_call(fused: FusedOp) -> bool:
    """Whether some calls of a ranged model compute less of a group than others."""
    return fused.required_regions is not None or reduction_end(anchor_of(fused)) is not None


def ranged_schedule(fused: FusedOp, target: Target, default: UseAttr) -> UseAttr | DispatchAttr:
    """The kernels of a group whose result is needed in part: the default one, or several with a tree over extents.

    Candidates are what the templates take by default for what some points of the range compute of the anchor, without
    those that a few calls show to gain nothing (`PointTimes.gaining`). The others are predicted at every point, with
    the rounds and the padding that they have there; those of attention only where their template is the default one.
    Several kernels have to raise the throughput over the best single one by `LEAST_GAIN`. A single one replaces the
    default on a GPU, where it raises the throughput by `LEAST_LOSS`; not on a CPU, and not that of a template that
    schedules everything: docs/adr/0072 has the measurement. Of a product whose default has a narrower last panel, one
    whose panels are all equal stands for it where kernels have a higher throughput with that. Operators of which no
    part is one (Winograd's convolution) have their default.
    """
    points = module_points(fused)
    times = PointTimes.of(fused, points, target)
    if times is None or len(times.different) < 2:
        return default
    least = LEAST_GAIN_ON_UNIT if isinstance(TEMPLATES[default.template.data], MatmulTilesCpu) else LEAST_GAIN
    first = [default, *_equal_panels(times.anchor, default, target)]
    uses = list(dict.fromkeys([*first, *times.gaining(default, least)]))
    if len(uses) == 1:
        return default
    table = {use: times.of_use(use) if use == default else times.of_other(use) for use in uses}
    if inf in table[default]:
        return default
    found = [chosen_dispatch(table, points, least, LEAST_LOSS, MOST_KERNELS, use) for use in first]
    weights = [point.weight for point in points]

    def together(kernels: Sequence[UseAttr]) -> float:
        return throughput(table, weights, kernels)

    chosen = max(found, key=lambda each: together(each.kernels))
    is_product = isinstance(times.anchor, MatmulOp)
    plain = chosen.kernels[0] if is_product and len(chosen.kernels) == 1 else first[found.index(chosen)]
    single = max((use for use in uses if inf not in table[use]), key=lambda use: together([use]))
    if isinstance(times.anchor, PackedMatmulOp):
        single = plain  # what a CPU takes otherwise; other products are compared with the best one, as measured there
    if len(chosen.kernels) > 1 and together(chosen.kernels) > (1 + least) * together([single]):
        return dispatch_of(chosen, points, table)
    if target.kind == "cpu" or TEMPLATES[default.template.data].takes_all:
        return plain
    return single if together([single]) > (1 + LEAST_LOSS) * together([plain]) else plain


def dispatch_of(
    chosen: Chosen[UseAttr], points: Sequence[Point], table: Mapping[UseAttr, Sequence[float]]
) -> DispatchAttr:
    """A choice as a decision, with what was predicted."""
    return DispatchAttr.get(chosen.tree, chosen.kernels, predicted(table, chosen.kernels, points))


def symbols_of(fused: FusedOp) -> tuple[str, ...]:
    """The ranges of the symbols of a group's module, as texts."""
    main = enclosing_function(fused)
    return () if main is None else tuple(range_texts(main, SYMBOLS))


def module_points(fused: FusedOp, weights: Weights | None = None, most: int = POINTS) -> list[Point]:
    """At most so many points of the range of a group's module; none without a range."""
    main, symbols = enclosing_function(fused), [parse_dim(text) for text in symbols_of(fused)]
    if main is None or not symbols or not extents_of(main):
        return []
    return points_of(symbols, range_texts(main, "extents"), weights or _weights_of_steps(main, symbols), most)


def _weights_of_steps(main: FuncOp, symbols: Sequence[Dim]) -> Weights:
    """Of a program with states, half of the calls are taken to be steps, which have the least of every extent but those
    of states. Of others nothing is known."""
    arguments, listed = {state.argument.data for state in states_of(main)}, main.attributes.get("input_extents")
    if not arguments or not isinstance(listed, ArrayAttr):
        return {}
    inputs = [each for n, each in enumerate(listed.data) if n not in arguments and isinstance(each, ArrayAttr)]
    given = {text.data for each in inputs for text in each.data if isinstance(text, StringAttr)}
    return {dim.name: _stepping(dim) for dim in symbols if dim.name in given}


def _stepping(dim: Dim) -> dict[int, float]:
    values = dict(spread(dim, _STEPS))
    first = max(dim.least, 1)
    return {**values, first: values.get(first, 0.0) + sum(values.values())}


def point_defaults(fused: FusedOp, points: Sequence[Point], target: Target) -> list[UseAttr]:
    """The defaults of a group's anchor at some points, as far as they are legal for the group; none where points say
    nothing of it."""
    times = PointTimes.of(fused, points, target)
    return [] if times is None else times.defaults()


def _default_of(instance: Anchor, anchor: Anchor, target: Target) -> UseAttr | None:
    """The default of an instance, if it is legal for the anchor itself."""
    template: Template | None = default_template(instance, target)
    if template is None or not template.fits(anchor):
        return None
    default = template.canonical(instance, template.default(instance, target), target)
    choices = template.of_part(anchor, instance, {**default, **template.decided(anchor, target)}, target)
    try:
        template.check(anchor, choices, target, "")
    except TreadleError:
        return None
    return UseAttr.get(template.name, choices)


def _equal_panels(anchor: Anchor, default: UseAttr, target: Target) -> list[UseAttr]:
    """The default on a CPU with panels that are all equal, where the last one is narrower, which is code of its own."""
    if default.template.data != MatmulCpu.name:
        return []
    assert isinstance(anchor, MatmulOp)
    return [UseAttr.get(MatmulCpu.name, choices) for choices in equal_panels(anchor, default.knobs(), target)]


class PointTimes:
    """The predicted seconds of an anchor's kernels at points of a range: with the rounds and the padding that blocks of
    the whole anchor's kernel have for the extents of each.

    A micro-kernel is one for all points: what a block does is known from the whole anchor, and a point decides how
    many of them there are, and how much of their work is padding. Source: DietCode (MLSys 2022), equations 2 and 3.
    """

    def __init__(self, anchor: Anchor, points: Sequence[Point], calls: Sequence[CallShape], target: Target):
        self.anchor, self._target, self._calls = anchor, target, calls
        self._weights = [point.weight for point in points]
        self.different = sorted(set(calls), key=_volume)
        """What calls compute, the smallest first."""
        self._whole = whole_shape(anchor)
        self._instances: dict[CallShape, Anchor] = {}
        self._known: dict[tuple[UseAttr, CallShape], AtPoint] = {}

    @classmethod
    def of(cls, fused: FusedOp, points: Sequence[Point], target: Target) -> PointTimes | None:
        """None for an operator of which no part is one, and where all points need all of it."""
        anchor = anchor_of(fused)
        if not points or not isinstance(anchor, MatmulOp | PackedMatmulOp | AttentionOp | ComputeOp):
            return None
        required, is_fused = required_within(fused, anchor.result), target.kind == "cpu"
        calls = [call_shape(anchor, required, point.extents, fused=is_fused) for point in points]
        return None if set(calls) == {whole_shape(anchor)} else cls(anchor, points, calls, target)

    def instance(self, call: CallShape) -> Anchor:
        """The anchor as it is in a call."""
        if call not in self._instances:
            self._instances[call] = instance_of(self.anchor, call)
        return self._instances[call]

    def defaults(self) -> list[UseAttr]:
        """What templates take by default at the points, as far as it is legal for the anchor, that of the smallest call
        first.

        Of other anchors than products, calls are taken to have the default that both a smaller and a larger one have.
        """
        known: dict[CallShape, UseAttr | None] = {}

        def default(call: CallShape) -> UseAttr | None:
            if call not in known:
                known[call] = _default_of(self.instance(call), self.anchor, self._target)
            return known[call]

        spans = [(0, len(self.different) - 1)]
        while spans:
            first, last = spans.pop()
            ends = default(self.different[first]), default(self.different[last])
            if last - first > 1 and (ends[0] != ends[1] or isinstance(self.anchor, MatmulOp)):
                middle = (first + last) // 2
                spans += [(first, middle), (middle, last)]
        return list(dict.fromkeys(use for call in self.different if (use := known.get(call)) is not None))

    def gaining(self, default: UseAttr, least: float) -> list[UseAttr]:
        """The defaults of points that are the fastest in one of a few calls, and there by a part of their time faster
        than another one, and the one that is the fastest in all of them together: the rest is not worth predicting at
        every point. Of products, all of them: several calls may share a kernel that is the fastest in none."""
        others = [use for use in self.defaults() if use != default]
        if not others or isinstance(self.anchor, MatmulOp):
            return others
        last = len(self.different) - 1
        probes = list(dict.fromkeys(self.different[last * n // (_PROBES - 1)] for n in range(_PROBES)))
        times = {use: self._of_use(use, probes) for use in (default, *others)}
        table = {use: [each[call].seconds for call in probes] for use, each in times.items()}
        if inf in table[default]:
            return []
        fastest = [min(others, key=lambda use: table[use][n]) for n in range(len(probes))]
        kept = {use for n, use in enumerate(fastest) if table[default][n] > (1 + least) * table[use][n]}
        kept.add(max(others, key=lambda use: throughput(table, [1.0] * len(probes), [use])))
        return [use for use in others if use in kept]

    def of_use(self, use: UseAttr) -> list[float]:
        """The seconds of a template's kernel at each point; infinite where nothing predicts it."""
        found = self._of_use(use, self.different)
        return [found[call].seconds for call in self._calls]

    def of_other(self, use: UseAttr) -> list[float]:
        """The seconds of a kernel that is not the whole anchor's default at each point. Of attention, infinite where
        its template is not the default one of the call's part.

        Kernels of few queries are predicted to be as good for many of them, which they are not: 7 heads that share keys
        of 64 elements, 256 queries and 1,024 keys take 1.49 times as long with `attention_decode_cpu` and one query a
        block as with `attention_cpu`, and were predicted to take 1.03 times as long (docs/adr/0079)."""
        found = self.of_use(use)
        if not isinstance(self.anchor, AttentionOp):
            return found
        templates = {call: default_template(self.instance(call), self._target) for call in self.different}
        own = {call for call, each in templates.items() if each is not None and each.name == use.template.data}
        return [seconds if call in own else inf for call, seconds in zip(self._calls, found, strict=True)]

    def of_candidate(self, candidate: Candidate, search: Task) -> AtPoints | None:
        """A candidate at the points and on the whole anchor; None where something of that is not predicted. Of nests,
        each point is predicted as an anchor of its own.

        search: of the whole anchor; TreadleError for a candidate that is not legal
        """
        found = self._of_candidate(candidate, search, list(dict.fromkeys([*self.different, self._whole])))
        if inf in {each.seconds for each in found.values()}:
            return None
        return AtPoints(tuple(found[call] for call in self._calls), tuple(self._weights), found[self._whole].seconds)

    def at(self, candidate: Candidate, search: Task, number: int) -> float:
        """The seconds at one point, as `of_candidate` predicts them; infinite where nothing predicts them."""
        call = self._calls[number]
        return self._of_candidate(candidate, search, [call])[call].seconds

    def _of_candidate(self, candidate: Candidate, search: Task, calls: Sequence[CallShape]) -> dict[CallShape, AtPoint]:
        replayed = search.replay(candidate)
        if isinstance(replayed, UseAttr):
            return self._of_use(replayed, calls)
        program = search.by_name[candidate.program]
        of_point = partial(replay, program, candidate.decisions, target=self._target)
        return {call: self._at_point(of_point, call) for call in calls}

    def _of_use(self, use: UseAttr, calls: Sequence[CallShape]) -> dict[CallShape, AtPoint]:
        if use.template.data == MatmulCpu.name:
            return self._of_panels(use.knobs(), calls)
        found: dict[CallShape, AtPoint] = {}
        larger = AtPoint(inf, 1.0)
        for call in sorted({*self.different, *calls}, key=_volume, reverse=True):
            # What is too small for its template, such as one window, takes at most as long as the next larger call.
            if call in calls or larger.seconds == inf:
                if (use, call) not in self._known:
                    self._known[use, call] = self._at_point(partial(self._in_call, use), call)
                known = self._known[use, call]
                larger = found[call] = larger if known.seconds == inf else known
        return found

    def _in_call(self, use: UseAttr, instance: Anchor) -> UseAttr:
        """A decision for an instance; TreadleError where its template does not fit it, such as of one window."""
        template = TEMPLATES[use.template.data]
        if not isinstance(instance, MatmulOp) and not template.fits(instance):
            raise TreadleError(f"template {template.name!r} does not schedule a part of {instance.name}")
        return UseAttr.get(template.name, template.in_call(instance, self.anchor, use.knobs(), self._target))

    def _of_panels(self, choices: Choices, calls: Sequence[CallShape]) -> dict[CallShape, AtPoint]:
        """Of kernels of `matmul_cpu`, which skip blocks of a grid that is the whole product's."""
        target, anchor = self._target, self.anchor
        assert isinstance(anchor, MatmulOp)
        grid, loads = blocks_of(anchor, choices, target), right_loads(anchor, choices, target)
        found: dict[CallShape, AtPoint] = {}
        for call in calls:
            instance = self.instance(call)
            assert isinstance(instance, MatmulOp)
            work = product_work(instance, choices, target, SHORT_HEIGHTS, grid, loads)
            found[call] = AtPoint(cpu_seconds(work, target, UNHIDDEN), busy(work.blocks, target.cores))
        return found

    def _at_point(self, replayed: Callable[[Anchor], Replayed], call: CallShape) -> AtPoint:
        """The kernel that an instance gets, whose blocks are as large as those of the whole anchor's."""
        instance, target = self.instance(call), self._target
        try:
            work = work_of(Group(instance), replayed(instance), target)
            # As kernels of `matmul_cpu` are predicted, with which they are compared (`_of_panels`).
            if isinstance(work, Work) and isinstance(self.anchor, MatmulOp | PackedMatmulOp):
                seconds = cpu_seconds(work, target, UNHIDDEN)
            else:
                seconds = predicted_seconds(work, target)
            return AtPoint(seconds, busy(work.blocks, max(1, places_of(work, target))))
        except TreadleError:
            return AtPoint(inf, 1.0)


@dataclass(frozen=True)
class AtPoints:
    """A candidate at the points of a range.

    whole: predicted seconds of the whole anchor
    """

    points: tuple[AtPoint, ...]
    weights: tuple[float, ...]
    whole: float

    def mean(self, adaption: Adaption) -> float:
        """The mean over the calls that the points stand for, as a part of what the whole anchor takes."""
        each = zip(self.weights, map(adaption.seconds, self.points), strict=True)
        return sum(weight * seconds for weight, seconds in each) / self.whole


def _volume(call: CallShape) -> tuple[int, tuple[int, ...]]:
    return prod(call.shape) * call.terms, call.shape
