"""schedule-select: decides how each group is scheduled."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from treadle.dialects.graph import FusedOp
from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.passes.schedule.anchor import anchor_of
from treadle.schedules.default_template import default_template
from treadle.target import Target


@dataclass(frozen=True)
class ScheduleSelectPass(ModulePass):
    """Writes the default decision on every group that has none; a decision made by hand or by a search stays.

    ```mlir
    %y = graph.fused "matmul" { ... } : tensor<128x768xf32>
    ```
    becomes
    ```mlir
    %y = graph.fused "matmul" { ... } schedule #schedule.use<"matmul_cpu", {rows = 8, chunk = 64, pack = false}> : ...
    ```
    target: the text of a target, `cpu` or `sm_80` and so on.
    """

    name = "schedule-select"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        for fused in [inner for inner in op.walk() if isinstance(inner, FusedOp)]:
            if fused.schedule is None:
                fused.schedule = default_schedule(fused, target)


def default_schedule(fused: FusedOp, target: Target) -> UseAttr:
    """The first template that fits the group's anchor, with its default choices; TreadleError if none does."""
    anchor = anchor_of(fused)
    template = default_template(anchor, target)
    if template is not None:
        return UseAttr.get(template.name, template.default(anchor, target))
    raise TreadleError(f"no template for {target.name} schedules {anchor.name} of {anchor.type}", anchor.location)
