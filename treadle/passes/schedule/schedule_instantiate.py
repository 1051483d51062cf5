"""schedule-instantiate: builds the kernel that each decision names."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import FusedOp
from treadle.passes.schedule.anchor import anchor_of
from treadle.passes.schedule.schedule_select import check_use
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target


@dataclass(frozen=True)
class ScheduleInstantiatePass(ModulePass):
    """Replaces the anchor of every group by the kernel of the chosen template; its neighbours stay as they are.

    ```mlir
    graph.fused "matmul_relu" {
      %m = graph.matmul %a, %b : ...
      %r = graph.compute (%i, %j) { ... %m ... } : tensor<128x768xf32>
      graph.yield %r
    } schedule #schedule.use<"matmul_cpu", {...}> : tensor<128x768xf32>
    ```
    becomes
    ```mlir
    graph.fused "matmul_relu" {
      %m = loop.kernel @matmul_relu ins(%A = %a : ..., %B = %b : ...) outs(%C : ...) grid(...) threads(...) { ... }
      %r = graph.compute (%i, %j) { ... %m ... } : tensor<128x768xf32>
      graph.yield %r
    } : tensor<128x768xf32>
    ```
    Rejected: an unknown template or knob, a value outside the space, a combination beyond a limit of the target.
    """

    name = "schedule-instantiate"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        for fused in [inner for inner in op.walk() if isinstance(inner, FusedOp)]:
            if fused.schedule is not None:
                instantiate(fused, target)


def instantiate(fused: FusedOp, target: Target) -> None:
    """Builds the kernel of one group from its decision, which is dropped."""
    use = fused.schedule
    assert use is not None
    where = f"group {fused.label.data!r}"
    check_use(fused, use, target, where)
    anchor, choices = anchor_of(fused), use.knobs()
    kernel = TEMPLATES[use.template.data].build(anchor, choices, target, fused.label.data)
    kernel.location = fused.location
    kernel.results[0].name_hint = anchor.result.name_hint
    Rewriter.insert_op(kernel, InsertPoint.before(anchor))
    Rewriter.replace_op(anchor, [], kernel.results)
    fused.schedule = None
