"""schedule-instantiate: builds the kernel that each decision names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, SymbolRefAttr, i64
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import ComputeOp, FusedOp, WholeOp
from treadle.dialects.graph.extents import enclosing_function, extents_of
from treadle.dialects.graph.operation_count import count_operations
from treadle.dialects.loop import CountAttr, DispatchOp, KernelOp
from treadle.dialects.schedule import DispatchAttr, ProgramOp, UseAttr
from treadle.errors import TreadleError
from treadle.passes.graph.graph_deduplicate import joined_tensors
from treadle.passes.schedule.instance import anchor_of
from treadle.passes.schedule.schedule_select import check_use
from treadle.schedules.nest.kernel import nest_kernel
from treadle.schedules.nest.nest import Nest
from treadle.schedules.search.programs import decisions_of, replay
from treadle.schedules.template import Anchor
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
      %m = loop.kernel @matmul_relu ins(%A = %a : ..., %B = %b : ...) outs(%C : ...) grid(...) threads(...)
          operations 604078080 comment "..." { ... }
      %r = graph.compute (%i, %j) { ... %m ... } : tensor<128x768xf32>
      graph.yield %r
    } : tensor<128x768xf32>
    ```
    A group whose schedule is a `#schedule.dispatch` becomes a `loop.dispatch` of a group for each of its alternatives.
    The kernel carries the number of operations of all members. A group may also name a program of the module,
    `schedule @tiled`, all of whose decisions are taken; programs are erased. Rejected: an unknown template, program or
    knob, a value outside the space, an open sample, a combination beyond a limit of the target.
    """

    name = "schedule-instantiate"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = Target.parse(self.target)
        programs = {each.sym_name.data: each for each in op.body.block.ops if isinstance(each, ProgramOp)}
        for fused in [inner for inner in op.walk() if isinstance(inner, FusedOp)]:
            if isinstance(fused.schedule, DispatchAttr):
                _spread(fused, fused.schedule)
        # Backwards: where a reduction ends follows from the definitions of what it reads (`reduction_end`).
        for fused in reversed([inner for inner in op.walk() if isinstance(inner, FusedOp)]):
            if fused.schedule is not None:
                instantiate(fused, target, programs)
        for program in programs.values():
            Rewriter.erase_op(program)


def instantiate(fused: FusedOp, target: Target, programs: Mapping[str, ProgramOp] | None = None) -> None:
    """Builds the kernel of one group from its decision, which is dropped."""
    anchor = anchor_of(fused)
    kernel = _kernel(fused, anchor, target, programs or {})
    kernel.location = fused.location
    kernel.operations = CountAttr(operations_of(fused))
    kernel.results[0].name_hint = anchor.result.name_hint
    joined = joined_tensors(anchor) if isinstance(anchor, ComputeOp) else None
    if joined is not None and set(kernel.inputs) == set(joined):
        kernel.joins = DenseArrayBase.from_list(i64, [joined[value] for value in kernel.inputs])
    Rewriter.insert_op(kernel, InsertPoint.before(anchor))
    Rewriter.replace_op(anchor, [], kernel.results)
    # A template may compute an operand from what it is computed from.
    for member in reversed(list(fused.body.block.ops)):
        if isinstance(member, ComputeOp) and not member.result.uses:
            Rewriter.erase_op(member)
    fused.schedule = None


def _spread(fused: FusedOp, schedule: DispatchAttr) -> None:
    """Puts a dispatch of copies of a group, each with one of its alternatives, in its place."""
    main = enclosing_function(fused)
    extents = list(extents_of(main)) if main is not None else []
    try:
        schedule.tree.check(len(schedule.alternatives.data), len(extents))
    except VerifyException as error:
        accepted = "the extents that @main's attribute `extents` names"
        raise TreadleError(f"the schedule's tree: {error}", f"group {fused.label.data!r}", accepted) from error
    copies: list[Operation] = []
    for alternative in schedule.alternatives.data:
        copies.append(copy := fused.clone())
        assert isinstance(alternative, UseAttr | SymbolRefAttr)
        copy.schedule = alternative
    dispatch = DispatchOp(schedule.tree, extents, Region(Block(copies)), fused.outputs.types)
    if schedule.predicted.data:
        dispatch.predicted = schedule.predicted
    dispatch.location = fused.location
    for result, old in zip(dispatch.outputs, fused.outputs, strict=True):
        result.name_hint = old.name_hint
    Rewriter.replace_op(fused, dispatch)


def operations_of(fused: FusedOp) -> int:
    """The arithmetic operations of a group's members by their definitions; one that two members read counts once."""
    return sum(count_operations(op) for op in fused.body.block.ops if isinstance(op, ComputeOp | WholeOp))


def _kernel(fused: FusedOp, anchor: Anchor, target: Target, programs: Mapping[str, ProgramOp]) -> KernelOp:
    """By the template that the decision names, or by the program."""
    where, label, schedule = f"group {fused.label.data!r}", fused.label.data, fused.schedule
    if isinstance(schedule, SymbolRefAttr):
        program = programs.get(schedule.string_value())
        if program is None:
            accepted = [f"@{name}" for name in programs] or "a schedule.program in the module"
            raise TreadleError(f"there is no schedule program @{schedule.string_value()}", where, accepted)
        schedule = replay(program, decisions_of(program), anchor, target)
    if isinstance(schedule, Nest):
        return nest_kernel(anchor, schedule, target, label)
    assert isinstance(schedule, UseAttr)
    check_use(fused, schedule, target, where)
    return TEMPLATES[schedule.template.data].build(anchor, schedule.knobs(), target, label)
