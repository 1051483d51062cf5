"""Reductions on a GPU: the threads of a block share one element and fold in shared memory."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.reduction import identity
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.schedule import Choice
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.scalar_body import emit_block, emit_operation
from treadle.schedules.template import Anchor, Choices, Knob, Template, number
from treadle.schedules.templates.reduce_cpu import only_reduce, walks_contiguously
from treadle.target import Target


class ReduceCuda(Template):
    """A block computes one element: each thread folds every `threads`-th term in a register, then a tree folds the
    threads' results in shared memory, halving each round, a barrier between rounds.
    """

    name: ClassVar[str] = "reduce_cuda"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (Knob("threads", (32, 64, 128, 256, 512), "threads of a block"),)

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, ComputeOp):
            return False
        reduce = only_reduce(anchor)
        return reduce is not None and walks_contiguously(anchor, reduce) and prod(reduce.shape) >= 32

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, ComputeOp)
        reduce = only_reduce(anchor)
        extent = prod(reduce.shape) if reduce is not None else 1
        return {"threads": 32 if extent <= 128 else 128 if extent <= 2048 else 256}

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, ComputeOp)
        tensors, threads = anchor.tensors(), number(choices, "threads")
        b = KernelBuilder([t.type for t in tensors if isinstance(t.type, TensorType)], anchor.type)
        index = b.delinearize(b.block, anchor.shape)
        values: dict[SSAValue, SSAValue] = dict(zip(tensors, b.inputs, strict=True))
        values.update(zip(anchor.body.block.args, index, strict=True))
        block = anchor.body.block
        reduce = next(op for op in block.ops if isinstance(op, ReduceOp))
        scratch = b.alloc("scratch", [threads], reduce.result.type, Space.SHARED)
        for op in block.ops:
            if op is reduce:
                break
            values[op.results[0]] = emit_operation(b, op, values)
        self._fold(b, reduce, values, scratch, threads)
        with b.when(b.binary("eq", b.thread, 0)):
            values[reduce.result] = b.load(scratch, [0])
            for op in _after(reduce):
                values[op.results[0]] = emit_operation(b, op, values)
            last = block.last_op
            assert isinstance(last, YieldOp)
            b.store(values[last.value], b.output, index)
        return b.kernel(name, tensors, anchor.type, prod(anchor.shape), threads, f"{anchor.type} by reduction")

    @staticmethod
    def _fold(
        b: KernelBuilder, reduce: ReduceOp, values: dict[SSAValue, SSAValue], scratch: SSAValue, threads: int
    ) -> None:
        """Leaves the fold of all terms in scratch[0], visible to every thread."""
        kind, element, extent = reduce.kind.data, reduce.result.type, prod(reduce.shape)
        neutral = b.constant(identity(kind, element), element)
        rounds = -(-extent // threads)
        part = b.alloc("part", [1], element)
        b.store(neutral, part, [0])
        with b.loop("k", rounds) as k:
            position = b.add(b.mul(k, threads), b.thread)
            with b.when(b.binary("lt", position, extent) if extent % threads else None):
                digits = b.delinearize(position, reduce.shape)
                inner = values | dict(zip(reduce.body.block.args, digits, strict=True))
                term = emit_block(b, reduce.body.block, inner)
                b.store(b.binary(kind, b.load(part, [0]), term), part, [0])
        b.store(b.load(part, [0]), scratch, [b.thread])
        b.barrier()
        width = threads // 2
        while width:
            with b.when(b.binary("lt", b.thread, width)):
                other = b.load(scratch, [b.add(b.thread, width)])
                b.store(b.binary(kind, b.load(scratch, [b.thread]), other), scratch, [b.thread])
            b.barrier()
            width //= 2


def _after(op: Operation) -> list[Operation]:
    """The operations between `op` and the end of its block."""
    rest: list[Operation] = []
    following = op.next_op
    while following is not None and not isinstance(following, YieldOp):
        rest.append(following)
        following = following.next_op
    return rest
