"""Definitions inlined into kernels: the body of a `graph.compute` replaces a load or a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.builder import Builder
from xdsl.dialects import arith
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, BlockArgument, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import AtOp, ComputeOp, YieldOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.loop import KernelOp, LoadOp, memref_of
from treadle.dialects.scalar import number_op
from treadle.passes.graph.inline_compute import same_constant

BufferOf = Callable[[SSAValue], SSAValue]
"""Gives the buffer, or the value itself, that stands for a tensor inside the kernel."""


class BodyInliner:
    """Writes a definition's scalar code at one point of a kernel.

    before: the operation in front of which it writes; guard: the predicate under which the value is needed, or None
    """

    def __init__(self, compute: ComputeOp, before: Operation, guard: SSAValue | None, otherwise: SSAValue | None):
        self._compute = compute
        self._guard = guard
        self._otherwise = otherwise
        self._builder = Builder(InsertPoint.before(before))

    def value(
        self, index: Sequence[SSAValue], element_of: Callable[[AtOp], SSAValue | None], buffer_of: BufferOf
    ) -> SSAValue:
        """The element at `index`. `element_of` may give a value that exists already for a read; other reads are
        loads."""
        values: dict[SSAValue, SSAValue] = dict(zip(self._compute.body.block.args, index, strict=True))
        for op in self._compute.body.block.ops:
            if isinstance(op, YieldOp):
                break
            if isinstance(op, AtOp):
                at_hand = element_of(op)
                values[op.result] = at_hand if at_hand is not None else self._load(op, values, buffer_of(op.source))
            else:
                self._insert(op.clone(values), op)
        return values[yielded(self._compute.body)]

    def _load(self, at: AtOp, values: dict[SSAValue, SSAValue], buffer: SSAValue) -> SSAValue:
        indices = [values[i] for i in at.indices]
        if at.predicate is None or at.otherwise is None:
            if self._guard is None:
                return self._insert(LoadOp(buffer, indices), at)
            return self._insert(LoadOp(buffer, indices, self._guard, self._substitute(at)), at)
        inner, otherwise = values[at.predicate], values[at.otherwise]
        where = inner if self._guard is None else self._insert(arith.AndIOp(self._guard, inner), at)
        return self._insert(LoadOp(buffer, indices, where, otherwise), at)

    def _substitute(self, at: AtOp) -> SSAValue:
        """What a load gives when its value is not needed: the outer `else` if that makes a select superfluous."""
        if self._otherwise is not None and yielded(self._compute.body) is at.result:
            return self._otherwise
        return self._insert(_placeholder(at.result.type), at)

    def yields_otherwise(self) -> bool:
        """Whether the inlined value is already the outer `else` where the guard fails."""
        at = yielded(self._compute.body).owner
        if not isinstance(at, AtOp) or self._otherwise is None:
            return False
        return at.otherwise is None or same_constant(at.otherwise, self._otherwise)

    def _insert(self, op: Operation, source: Operation) -> SSAValue:
        op.location = source.location
        self._builder.insert(op)
        return op.results[0]


def _placeholder(type: Attribute) -> Operation:
    """A value for a load that does not happen."""
    return number_op(0, type)


class KernelArguments:
    """The operands and buffers of a kernel while it is rewritten; `rebuild` makes the new kernel."""

    def __init__(self, kernel: KernelOp):
        self.kernel = kernel
        self.block = kernel.body.block
        self.operands = list(kernel.inputs)
        self._buffers: dict[SSAValue, BlockArgument] = dict(zip(self.operands, kernel.input_buffers, strict=True))

    def buffer_of(self, tensor: SSAValue) -> BlockArgument:
        """The buffer that holds a tensor, added as the last input if there is none yet."""
        if tensor not in self._buffers:
            assert isinstance(tensor.type, TensorType)
            buffer = self.block.insert_arg(memref_of(tensor.type), len(self.operands))
            buffer.name_hint = tensor.name_hint or f"X{len(self.operands)}"
            self._buffers[tensor] = buffer
            self.operands.append(tensor)
        return self._buffers[tensor]

    def remove(self, tensor: SSAValue) -> None:
        """Drops an input whose buffer is no longer used."""
        # By position: a tensor may be an operand twice.
        position = self._buffers.pop(tensor).index
        del self.operands[position]
        self.block.erase_arg(self.block.args[position])

    def rebuild(self, result_types: Sequence[TensorType] | None = None) -> KernelOp:
        """The kernel with the new operands, inserted before the old one, which is left without a body.

        Without new types it gives what the old one gave, and replaces it.
        """
        old = self.kernel
        body = Region()
        old.body.move_blocks(body)
        comment = old.comment.data if old.comment is not None else None
        types = list(old.outputs.types) if result_types is None else result_types
        new = KernelOp(
            old.sym_name.data,
            self.operands,
            types,
            old.grid.value.data,
            old.threads.value.data,
            body,
            comment,
            None if old.min_blocks_per_sm is None else old.min_blocks_per_sm.value.data,
        )
        new.operations, new.cluster = old.operations, old.cluster
        new.location = old.location
        Rewriter.insert_op(new, InsertPoint.before(old))
        if result_types is None:
            new.required_regions = old.required_regions
            for result, replaced in zip(new.outputs, old.outputs, strict=True):
                result.name_hint = replaced.name_hint
            Rewriter.replace_op(old, [], new.results)
        return new
