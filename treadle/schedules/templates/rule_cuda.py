"""The rule for every definition on a GPU: one thread, one element."""

from __future__ import annotations

from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType

from treadle.dialects.graph import WholeOp, definition
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat, spatial
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.scalar_body import emit_element
from treadle.schedules.template import Anchor, Choices, Knob, Template, number
from treadle.target import Target


class RuleCuda(Template):
    """Consecutive threads compute consecutive elements, so that pointwise reads and writes are coalesced; a thread
    computes `repeats` elements, a block apart. Source: Hidet (ASPLOS 2023), section 5.1.3, rule-based scheduling.
    """

    name: ClassVar[str] = "rule_cuda"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("threads", (32, 64, 128, 256, 512), "threads of a block"),
        Knob("repeats", (1, 2, 4, 8), "elements of a thread"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return True

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        total = prod(anchor.shape)
        # Enough blocks to fill every multiprocessor come before more work a thread.
        threads = 256 if total >= 256 * target.multiprocessors else 128 if total >= 4096 else 64
        return {"threads": threads, "repeats": 1}

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        compute = definition(anchor) if isinstance(anchor, WholeOp) else anchor
        tensors = compute.tensors()
        b = KernelBuilder([t.type for t in tensors if isinstance(t.type, TensorType)], compute.type)
        threads, repeats = number(choices, "threads"), number(choices, "repeats")
        total, tile = prod(compute.shape), threads * repeats
        with b.tasks(["i"], repeat(repeats) * spatial(threads), b.thread) as (i,):
            position = b.add(b.mul(b.block, tile), i)
            with b.when(b.binary("lt", position, total) if total % tile else None):
                index = b.delinearize(position, compute.shape)
                value = emit_element(b, compute, index, dict(zip(tensors, b.inputs, strict=True)))
                b.store(value, b.output, index)
        operators = compute.operators.data if compute.operators is not None else "compute"
        kernel = b.kernel(name, tensors, compute.type, ceil(total / tile), threads, f"{operators} to {compute.type}")
        if compute is not anchor:
            compute.erase()
        return kernel
