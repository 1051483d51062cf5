"""loop-fuse-prologue: producers move into the kernel that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import ComputeOp, FusedOp, RequiredAttr
from treadle.dialects.graph.compute import yielded_values
from treadle.dialects.location import location_of
from treadle.dialects.loop import KernelOp, LoadOp
from treadle.errors import TreadleError
from treadle.passes.graph.definition_analysis import is_injective
from treadle.passes.loop.inline_body import BodyInliner, KernelArguments


@dataclass(frozen=True)
class LoopFuseProloguePass(ModulePass):
    """Replaces each load of a kernel's argument by the body of the `graph.compute` that produces it.

    ```mlir
    %a = graph.compute (%i) { %c = graph.at %x[%i] ... %d = arith.mulf %c, %two ... graph.yield %d }
    %b = loop.kernel @reverse ins(%A = %a : tensor<100xf32>) ... { ... %v = loop.load %A[%p] ... }
    ```
    becomes
    ```mlir
    %b = loop.kernel @reverse ins(%X0 = %x : tensor<100xf32>) ... {
      ... %c = loop.load %X0[%p] ... %v = arith.mulf %c, %two ... }
    ```
    A predicated load makes the loads of the body predicated. Source: Hidet (ASPLOS 2023), section 5.2.
    """

    name = "loop-fuse-prologue"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for fused in [inner for inner in op.walk() if isinstance(inner, FusedOp)]:
            while fuse_one_prologue(fused):
                pass
            dissolve(fused)


def fuse_one_prologue(fused: FusedOp) -> bool:
    """Inlines one producer of the group's kernel; False if it has none."""
    for kernel in fused.body.block.ops:
        if not isinstance(kernel, KernelOp):
            continue
        for tensor in kernel.inputs:
            producer = tensor.owner
            if isinstance(producer, ComputeOp) and producer.parent_op() is fused:
                inline_prologue(kernel, tensor, producer)
                return True
    return False


def inline_prologue(kernel: KernelOp, tensor: SSAValue, producer: ComputeOp) -> None:
    """Rewrites the kernel so that it computes `tensor` where it loads it; drops the producer if it was the last use."""
    if not is_injective(producer):
        raise TreadleError("a prologue has no graph.reduce", location_of(producer), "an injective graph.compute")
    arguments = KernelArguments(kernel)
    buffer = arguments.buffer_of(tensor)
    for use in list(buffer.uses):
        load = use.operation
        if not isinstance(load, LoadOp):
            raise TreadleError(
                f"{load.name} uses the argument of @{kernel.sym_name.data} that a prologue produces",
                location_of(load),
                "loop.load",
            )
        _inline_at(load, producer, arguments)
    arguments.remove(tensor)
    arguments.rebuild()
    if not list(producer.result.uses):
        Rewriter.erase_op(producer)


def _inline_at(load: LoadOp, producer: ComputeOp, arguments: KernelArguments) -> None:
    inliner = BodyInliner(producer, load, load.predicate, load.otherwise)
    value = inliner.value(load.indices, lambda at: None, arguments.buffer_of)
    if load.predicate is not None and load.otherwise is not None and not inliner.yields_otherwise():
        select = arith.SelectOp(load.predicate, value, load.otherwise)
        select.location = load.location
        Rewriter.insert_op(select, InsertPoint.before(load))
        value = select.result
    Rewriter.replace_op(load, [], [value])


def dissolve(fused: FusedOp) -> None:
    """Replaces a group that contains nothing but a kernel by the kernel."""
    members = list(fused.body.block.ops)
    if len(members) != 2 or not isinstance(members[0], KernelOp):
        return
    kernel, given = members[0], list(yielded_values(fused.body))
    if any(value.owner is not kernel for value in given):
        return
    kernel.required_regions = _required_regions(kernel, fused, given)
    kernel.detach()
    Rewriter.insert_op(kernel, InsertPoint.before(fused))
    for value, result in zip(given, fused.outputs, strict=True):
        value.name_hint = result.name_hint
    Rewriter.replace_op(fused, [], given)


def _required_regions(kernel: KernelOp, fused: FusedOp, given: Sequence[SSAValue]) -> ArrayAttr | None:
    """What is required of a group's results, as required regions of its kernel's; of what it gives twice,
    everything."""
    if fused.required_regions is None:
        return None
    required_regions: Sequence[Attribute] = fused.required_regions.data
    known = {
        value: required_region
        for value, required_region in zip(given, required_regions, strict=True)
        if given.count(value) == 1
    }
    return ArrayAttr([known.get(result, RequiredAttr.of([])) for result in kernel.outputs])
