"""Modules whose groups take one of several kernels by their extents, whatever a cost model says of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from xdsl.dialects.builtin import ModuleOp

from treadle.api import resolve_target
from treadle.backends.program import planned_main
from treadle.dialects.graph import FusedOp
from treadle.dialects.graph.extents import extents_of
from treadle.dialects.schedule import DispatchAttr, UseAttr
from treadle.ir import lower
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.template import Anchor, Choices
from treadle.schedules.templates import TEMPLATES
from treadle.shapes.decision_tree import Leaf, Split, Tree
from treadle.target import Target

THRESHOLDS = (1, 6, 13, 31)


def dispatch_everything(module: ModuleOp, target: str) -> int:
    """Lowers a module up to `schedule`, where every group gets up to five kernels; how many groups got several.

    Thresholds alternate among the extents.
    """
    lower(module, target, to="schedule")
    extents = len(extents_of(planned_main(module)))
    groups = 0
    for fused in [op for op in module.walk() if isinstance(op, FusedOp)]:
        found = islice(_choices(anchor_of(fused), resolve_target(target)), len(THRESHOLDS) + 1)
        uses = [UseAttr.get(name, choices) for name, choices in found]
        if len(uses) > 1:
            fused.schedule = DispatchAttr.get(_tree(len(uses), extents), uses)
            groups += 1
    return groups


def _choices(anchor: Anchor, target: Target) -> Iterator[tuple[str, Choices]]:
    """A few choices of every template of the target that schedules an anchor, far apart in its space."""
    fitting = [each for each in TEMPLATES.values() if each.kind == target.kind and each.fits(anchor)]
    for template in fitting:
        if not template.has_default(anchor, target):
            continue
        all = list(islice(template.candidates(anchor, target), 500))
        yield from ((template.name, all[n]) for n in sorted({0, len(all) // 3, len(all) // 2}) if all)


def _tree(kernels: int, extents: int) -> Tree[int]:
    tree: Tree[int] = Leaf(kernels - 1)
    for kernel in reversed(range(kernels - 1)):
        tree = Split(kernel % extents, THRESHOLDS[kernel], Leaf(kernel), tree)
    return tree
