"""loop-fuse-epilogue: consumers move into the kernel that stores what they read."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import ComputeOp, FusedOp
from treadle.dialects.graph.compute import enclosing_compute
from treadle.dialects.loop import KernelOp, StoreOp, memref_of
from treadle.errors import TreadleError
from treadle.passes.graph.properties import emit_inverse
from treadle.passes.loop.inline_body import BodyInliner, KernelArguments
from treadle.passes.loop.loop_fuse_prologue import dissolve


@dataclass(frozen=True)
class LoopFuseEpiloguePass(ModulePass):
    """Replaces each store of a kernel's result by the body of the `graph.compute` that consumes it.

    ```mlir
    %b = loop.kernel @reverse ... outs(%C : tensor<100xf32>) ... { ... loop.store %v, %C[%i] }
    %d = graph.compute (%p, %q) {
      %e = graph.at %b[%p * 50 + %q] ... %t = arith.mulf %e, %three ... graph.yield %t } : tensor<2x50xf32>
    ```
    becomes
    ```mlir
    %d = loop.kernel @reverse ... outs(%C : tensor<2x50xf32>) ... { ... %t = arith.mulf %v, %three
      loop.store %t, %C[%i / 50, %i % 50] }
    ```
    The consumer is bijective in the result: the inverse of its index map says where each element goes. Reads of
    other tensors become loads under the store's predicate. Source: Hidet (ASPLOS 2023), section 5.2.
    """

    name = "loop-fuse-epilogue"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for fused in [inner for inner in op.walk() if isinstance(inner, FusedOp)]:
            while fuse_one_epilogue(fused):
                pass
            dissolve(fused)


def fuse_one_epilogue(fused: FusedOp) -> bool:
    """Inlines the consumer of the group's kernel; False if it has none."""
    for kernel in fused.body.block.ops:
        if not isinstance(kernel, KernelOp):
            continue
        users = list(dict.fromkeys(enclosing_compute(use.operation) for use in kernel.result.uses))
        if len(users) == 1 and isinstance(users[0], ComputeOp):
            inline_epilogue(kernel, users[0])
            return True
    return False


def inline_epilogue(kernel: KernelOp, consumer: ComputeOp) -> None:
    """Rewrites the kernel so that it stores the consumer's elements in place of its own; drops the consumer."""
    arguments = KernelArguments(kernel)
    old = kernel.result
    output = kernel.output_buffer
    place = output.index + 1
    new_output = kernel.body.block.insert_arg(memref_of(consumer.type), place)
    new_output.name_hint = output.name_hint
    # The consumer stands after the kernel: its other operands dominate the kernel's new place.
    kernel.detach()
    Rewriter.insert_op(kernel, InsertPoint.before(consumer))
    for use in list(output.uses):
        store = use.operation
        if not isinstance(store, StoreOp):
            raise TreadleError(f"{store.name} uses the result of @{kernel.sym_name.data}", store.location, "loop.store")
        _inline_at(store, consumer, old, new_output, arguments)
    kernel.body.block.erase_arg(output)
    new = arguments.rebuild(consumer.type)
    Rewriter.replace_op(consumer, [], [new.result])


def _inline_at(
    store: StoreOp, consumer: ComputeOp, tensor: SSAValue, output: SSAValue, arguments: KernelArguments
) -> None:
    index = emit_inverse(consumer, tensor, store.indices, InsertPoint.before(store))
    if index is None:
        raise TreadleError(
            "an epilogue feeds each element of the kernel's result to exactly one of its own", consumer.location,
            "a graph.compute that is bijective in it",
        )  # fmt: skip
    inliner = BodyInliner(consumer, store, store.predicate, None)
    value = inliner.value(index, lambda at: store.value if at.source is tensor else None, arguments.buffer_of)
    new = StoreOp(value, output, index, store.predicate)
    new.location = store.location
    Rewriter.replace_op(store, new)
