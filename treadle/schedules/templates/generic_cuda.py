"""Every definition on a GPU: one thread, one element."""

from __future__ import annotations

from math import ceil, prod
from typing import ClassVar

from treadle.dialects.graph import ReduceOp, WholeOp, definition
from treadle.dialects.graph.compute import only_reduce
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat, spatial
from treadle.schedules.access_analysis import collapsed_width
from treadle.schedules.kernel_builder import emit_element, kernel_builder
from treadle.schedules.reduction_end import reduction_end, terms_of, with_end
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_divides, number
from treadle.target import Target


class GenericCuda(Template):
    """Consecutive threads compute consecutive elements, so that pointwise reads and writes are coalesced; a thread
    computes `repeats` of them, a block apart, and instead of one element the `vector` neighbours that are read and
    written at once. Source: Hidet (ASPLOS 2023), section 5.1.3, rule-based scheduling.
    """

    name: ClassVar[str] = "generic_cuda"
    kind: ClassVar[str] = "cuda"
    takes_all: ClassVar[bool] = True
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("threads", (32, 64, 128, 256, 512), "threads of a block"),
        Knob("repeats", (1, 2, 4, 8), "elements or vectors of a thread"),
        Knob("vector", (1, 2, 4, 8), "neighbouring elements that a thread computes together"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return True

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        decided = self.decided(anchor, target)
        total = prod(anchor.shape) // number(decided, "vector")
        # Enough blocks to fill every multiprocessor come before more work a thread.
        threads = 256 if total >= 256 * target.multiprocessors else 128 if total >= 4096 else 64
        return {"threads": threads, "repeats": 1, **decided}

    def decided(self, anchor: Anchor, target: Target) -> Choices:
        if isinstance(anchor, WholeOp) or any(isinstance(op, ReduceOp) for op in anchor.body.walk()):
            return {"vector": 1}
        longest = target.vector_bytes // byte_width(anchor.type.get_element_type())
        # Half a wave of warps everywhere comes before longer vectors.
        enough = prod(anchor.shape) // (32 * target.warp_size * target.multiprocessors)
        return {"vector": collapsed_width(anchor, slice(None), max(1, min(longest, 8, enough)))}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        vector, total = number(choices, "vector"), prod(anchor.shape)
        check_divides(
            "elements of vectors",
            vector,
            total,
            f"generic_cuda: vectors of {vector} overrun a result of {total} elements by {-total % vector}",
            accepted="a vector that divides the number of elements",
        )

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        compute = definition(anchor) if isinstance(anchor, WholeOp) else anchor
        end, reduce = reduction_end(anchor), only_reduce(compute)
        tensors = with_end(compute.tensors(), end)
        b = kernel_builder(tensors, compute.type)
        if end is not None and reduce is not None:
            b.ends = {reduce.body.block.args[end.dim]: terms_of(b, end, tensors)}
        threads, repeats, vector = (number(choices, knob) for knob in ("threads", "repeats", "vector"))
        total, tile = prod(compute.shape) // vector, threads * repeats
        with b.tasks(["i"], repeat(repeats) * spatial(threads), b.thread) as (i,):
            position = b.block * tile + i
            inside = position < total if total % tile else None
            with b.when(inside), b.loop("lane", vector, unroll=True) as lane:
                index = (position * vector + lane).delinearize(compute.shape)
                value = emit_element(b, compute, index, dict(zip(tensors, b.inputs, strict=True)))
                b.store(value, b.output, index)
        operators = compute.operators.data if compute.operators is not None else "compute"
        kernel = b.kernel(name, tensors, compute.type, ceil(total / tile), threads, f"{operators} to {compute.type}")
        if compute is not anchor:
            compute.erase()
        return kernel
