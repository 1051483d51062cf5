"""Which kernels the groups of a scheduled module get, and why not those of other templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from treadle.dialects.graph import FusedOp
from treadle.dialects.location import describe_nodes
from treadle.dialects.schedule import DispatchAttr, UseAttr
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.default_template import obstacles
from treadle.target import Target


@dataclass(frozen=True)
class KernelChoice:
    """A group's kernels.

    nodes: of the model, for people; templates: several where a call decides, "a program" for one of the database
    obstacles: by template, why the group does not get it by default, of those that are tried before its own
    """

    group: str
    nodes: str
    templates: Sequence[str]
    obstacles: Mapping[str, str]


def kernel_choices(module: ModuleOp, target: Target) -> Iterator[KernelChoice]:
    """The choices of a module after the stage `schedule`, in the order of its groups."""
    for fused in [op for op in module.walk() if isinstance(op, FusedOp)]:
        schedule = fused.schedule
        uses = schedule.alternatives.data if isinstance(schedule, DispatchAttr) else (schedule,)
        names = dict.fromkeys(use.template.data if isinstance(use, UseAttr) else "a program" for use in uses)
        found = {name: why for name, why in obstacles(anchor_of(fused), target).items() if name not in names}
        yield KernelChoice(fused.label.data, describe_nodes(fused.location), list(names), found)


__all__ = ["KernelChoice", "kernel_choices"]
