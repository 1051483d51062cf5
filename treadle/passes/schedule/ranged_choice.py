"""Which kernels a product of a ranged model gets: those that a cost model predicts to be worth dispatching among."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import inf, prod
from typing import TypeAlias

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.dialects.func import FuncOp

from treadle.dialects.dispatch_tree import Prediction
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.schedule import MOST_KERNELS, DispatchAttr, UseAttr
from treadle.errors import TreadleError
from treadle.passes.graph.demand.facts import Extents, enclosing_function, extents_of
from treadle.passes.graph.graph_demand import demand_within
from treadle.passes.schedule.anchor import anchor_of
from treadle.passes.schedule.group_program import SYMBOLS, group_program
from treadle.passes.schedule.instance import instance_of, needed_shape, needed_terms
from treadle.schedules.default_template import default_template
from treadle.schedules.gpu_work import GpuWork
from treadle.schedules.joint.choice import Chosen, chosen_dispatch
from treadle.schedules.joint.micro_kernels import throughput
from treadle.schedules.joint.points import POINTS, Point, Weights, points_of
from treadle.schedules.register_tile import SHORT_HEIGHTS
from treadle.schedules.search.analytic import UNHIDDEN, cpu_seconds, gpu_seconds
from treadle.schedules.search.product_work import blocks_of, product_work, right_loads
from treadle.schedules.template import Choices, Template
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.matmul_cpu import MatmulCpu, equal_panels
from treadle.shapes import parse_dim
from treadle.target import Target

LEAST_GAIN = 0.1
"""The part of its throughput, relative to the best micro-kernel's and averaged over the points, by which a further
kernel has to raise that of a group: docs/adr/0046 has the measurement."""
LEAST_LOSS = 0.05
"""The part of its points' time that a leaf of the tree may lose; assumed, half of the above."""
_Instance: TypeAlias = tuple[tuple[int, ...], int]
"""The extents of a product's result, and its terms."""
_TILES = sorted(product((1, 8, 16, 32, 64, 128, 256), repeat=2), key=prod)
"""Rows and columns to whose multiples an instance is padded until a template tells its work."""


class RangedSchedules:
    """The kernels of a module's groups; those of equal groups are chosen once."""

    def __init__(self, target: Target):
        self._target = target
        self._known: dict[tuple[str, str], UseAttr | DispatchAttr] = {}

    def of(self, fused: FusedOp, default: UseAttr) -> UseAttr | DispatchAttr:
        """What `ranged_schedule` says of a group."""
        if fused.demands is None:
            return default
        key = group_program(fused).digest(), str(fused.demands)
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
    anchor = anchor_of(fused)
    points = module_points(fused) if isinstance(anchor, MatmulOp) else []
    if not points or not isinstance(anchor, MatmulOp):
        return default
    demanded = demand_within(fused, anchor.result)
    main = enclosing_function(fused)
    extents: Extents = {} if main is None or target.kind != "cpu" else extents_of(main)
    shapes = [
        (needed_shape(anchor.shape, demanded, point.extents), needed_terms(anchor, point.extents, extents))
        for point in points
    ]
    instances = {(shape, terms): instance_of(anchor, shape, terms=terms) for shape, terms in shapes}
    if len(instances) < 2:
        return default
    first = [default, *_equal_panels(anchor, default, target)]
    uses = list(dict.fromkeys([*first, *_defaults(anchor, list(instances.values()), target)]))
    if len(uses) == 1:
        return default
    table = {use: _times(instances, shapes, use, target, anchor) for use in uses}
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
    best = [min(times[n] for times in table.values()) for n in range(len(points))]
    predicted = [
        Prediction(point.extents, point.weight, (*(table[kernel][n] for kernel in chosen.kernels), best[n]))
        for n, point in enumerate(points)
    ]
    return DispatchAttr.get(chosen.tree, chosen.kernels, predicted)


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
    demanded = demand_within(fused, anchor.result)
    shapes = dict.fromkeys(needed_shape(anchor.shape, demanded, point.extents) for point in points)
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


def _times(
    instances: Mapping[_Instance, MatmulOp], points: Sequence[_Instance], use: UseAttr, target: Target, whole: MatmulOp
) -> list[float]:
    """The predicted seconds of a whole product's kernel at each point, by the instance that is needed there; infinite
    where nothing predicts it."""
    choices, seconds = use.knobs(), dict[_Instance, float]()
    if use.template.data == MatmulCpu.name:
        grid, loads = blocks_of(whole, choices, target), right_loads(whole, choices, target)
        for key, instance in instances.items():
            work = product_work(instance, choices, target, SHORT_HEIGHTS, grid, loads)
            seconds[key] = cpu_seconds(work, target, UNHIDDEN)
    else:
        for key, instance in instances.items():
            padded = _padded_work(instance, TEMPLATES[use.template.data], choices, target)
            seconds[key] = inf if padded is None else gpu_seconds(padded, target)
    return [seconds[point] for point in points]


def _padded_work(instance: MatmulOp, template: Template, choices: Choices, target: Target) -> GpuWork | None:
    """The work of a GPU's product by itself, as if its rows and columns were those of whole tiles."""
    *batch, rows, columns = instance.shape

    def padded(high: int, wide: int) -> GpuWork | None:
        shape = (*batch, -(-rows // high) * high, -(-columns // wide) * wide)
        return template.work(instance_of(instance, shape, is_plain=True), choices, target)

    if padded(*_TILES[-1]) is None:
        return None
    return next(work for work in (padded(*tile) for tile in _TILES) if work is not None)


__all__ = [
    "LEAST_GAIN", "LEAST_LOSS", "RangedSchedules", "dispatch_of", "module_points", "point_defaults",
    "ranged_schedule", "symbols_of",
]  # fmt: skip
