"""loop-fuse-epilogue: consumers move into the kernel that stores what they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import ComputeOp, FusedOp
from treadle.dialects.graph.compute import yielded_values
from treadle.dialects.location import location_of
from treadle.dialects.loop import KernelOp, StoreOp, memref_of
from treadle.errors import TreadleError
from treadle.passes.graph.definition_analysis import emit_inverse
from treadle.passes.graph.epilogue_index import Alignment, aligned
from treadle.passes.loop.inline_body import BodyInliner, KernelArguments
from treadle.passes.loop.loop_fuse_prologue import dissolve


@dataclass(frozen=True)
class LoopFuseEpiloguePass(ModulePass):
    """Replaces each store of a kernel's result by the bodies of the `graph.compute`s that consume it.

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
    A consumer is bijective in what it reads: the inverse of its index map says where each element goes. Reads of other
    tensors become loads under the store's predicate. What the group yields is stored, several tensors by several
    stores; other values stay in registers. A compute of the group that reads no result of the kernel, but has its
    shape, is computed beside it, element by element. Source: Hidet (ASPLOS 2023), section 5.2, extended to several
    results.
    """

    name = "loop-fuse-epilogue"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for fused in [inner for inner in op.walk() if isinstance(inner, FusedOp)]:
            fuse_epilogues(fused)
            dissolve(fused)


def fuse_epilogues(fused: FusedOp) -> None:
    """Inlines the consumers of the group's kernel, in program order."""
    members = list(fused.body.block.ops)
    kernel = next((op for op in members if isinstance(op, KernelOp)), None)
    consumers = [op for op in members if isinstance(op, ComputeOp)]
    if kernel is None or not consumers:
        return
    _StoreSites(kernel).fuse(consumers, yielded_values(fused.body))


@dataclass
class _Site:
    """One store of the kernel, and what is known of each tensor there: the index of one element, and its value."""

    store: StoreOp
    elements: dict[SSAValue, tuple[Sequence[SSAValue], SSAValue]] = field(
        default_factory=dict[SSAValue, tuple[Sequence[SSAValue], SSAValue]]
    )


class _StoreSites:
    """The stores of a kernel while consumers are computed at them."""

    def __init__(self, kernel: KernelOp):
        self.kernel = kernel
        self.arguments = KernelArguments(kernel)
        # Kept, since new inputs are inserted in front of them.
        self.buffers = list(kernel.output_buffers)
        self.alignments: dict[SSAValue, Alignment] = {}
        self.sites: list[_Site] = []
        for result, buffer in zip(kernel.outputs, self.buffers, strict=True):
            self.alignments[result] = Alignment.of(result)
            self.sites += [self._site(use.operation, result) for use in list(buffer.uses)]

    def _site(self, store: Operation, result: SSAValue) -> _Site:
        if not isinstance(store, StoreOp):
            name = self.kernel.sym_name.data
            raise TreadleError(f"{store.name} uses the result of @{name}", location_of(store), "loop.store")
        return _Site(store, {result: (store.indices, store.value)})

    def fuse(self, consumers: Sequence[ComputeOp], wanted: Sequence[SSAValue]) -> None:
        """Computes the consumers, stores the group's results, and replaces kernel and consumers by the new kernel."""
        for consumer in consumers:
            self._compute(consumer)
        results = list(dict.fromkeys(value for value in wanted if value in self.alignments))
        self._store(results)
        new = self.arguments.rebuild([_tensor(result) for result in results])
        # The new kernel goes after the consumers' other operands, so that these dominate it.
        new.detach()
        Rewriter.insert_op(new, InsertPoint.after(consumers[-1]))
        for old, result in zip(results, new.outputs, strict=True):
            result.name_hint = old.name_hint
            old.replace_all_uses_with(result)
        for op in (*reversed(consumers), self.kernel):
            Rewriter.erase_op(op)

    def _compute(self, consumer: ComputeOp) -> None:
        """Writes the consumer's element at every store of what it reads."""
        alignment = aligned(consumer, self.alignments)
        if isinstance(alignment, str):
            raise TreadleError(
                f"{alignment}: an epilogue feeds each element of the kernel's result to exactly one of its own",
                location_of(consumer),
                "a graph.compute that is bijective in it",
            )
        source = alignment.source
        for site in [site for site in self.sites if source in site.elements]:
            point = InsertPoint.before(site.store)
            at, _ = site.elements[source]
            index = at if alignment.beside else emit_inverse(consumer, source, at, point)
            assert index is not None, "aligned says that it is bijective"
            inliner = BodyInliner(consumer, site.store, site.store.predicate, None)
            known = site.elements
            value = inliner.value(
                index, lambda read, known=known: known[read.source][1] if read.source in known else None,
                self.arguments.buffer_of,
            )  # fmt: skip
            site.elements[consumer.result] = (index, value)
        self.alignments[consumer.result] = alignment

    def _store(self, results: Sequence[SSAValue]) -> None:
        """Replaces the kernel's stores and its buffers of results by those of `results`."""
        block = self.kernel.body.block
        for position, result in enumerate(results, start=len(self.arguments.operands)):
            buffer = block.insert_arg(memref_of(_tensor(result)), position)
            buffer.name_hint = self.buffers[0].name_hint
            for site in [site for site in self.sites if result in site.elements]:
                index, value = site.elements[result]
                store = StoreOp(value, buffer, index, site.store.predicate)
                store.location = site.store.location
                Rewriter.insert_op(store, InsertPoint.before(site.store))
        for site in self.sites:
            Rewriter.erase_op(site.store)
        for buffer in self.buffers:
            block.erase_arg(buffer)


def _tensor(value: SSAValue) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
