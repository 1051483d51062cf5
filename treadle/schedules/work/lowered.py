"""The work of a lowered kernel: its operations become a tree as `Recorder` makes one of a template, which is counted.

An index is a position, a predicate its conditions. Nothing of `rules.py` is done to the tree: the loop passes have done
it to the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, MemRefType, VectorType, i1
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.loop import (
    AllocOp,
    ArriveOp,
    AsyncCopyOp,
    BarrierOp,
    FuncOp,
    LaneConvertOp,
    LaneLookupOp,
    MmaOp,
    MultiplyTilesOp,
    RoundPairOp,
    RoundTf32Op,
    TransposeOp,
    WaitOp,
)
from treadle.dialects.loop.accesses import accesses, name_of
from treadle.index.positions import Variable
from treadle.schedules.gpu_time import GpuWork
from treadle.schedules.work.cpu_work import Work, count_on_cpu
from treadle.schedules.work.gpu_work import cost_of, count_on_gpu
from treadle.schedules.work.rules import transposition
from treadle.schedules.work.scalars import ScalarRecorder, Value, buffer_of, one_of, unknown_index
from treadle.schedules.work.tree import (
    ROUND_PAIR,
    Branch,
    Buffer,
    Chance,
    Condition,
    Kernel,
    Node,
    Otherwise,
    Step,
    finish,
    renew,
    tiles_step,
)
from treadle.target import Target

_INDEX = IndexType()
_UNROLL = "loop.unroll"


def count_work(kernel: FuncOp, target: Target) -> Work:
    """The work of a kernel for a CPU, after stage `loops`."""
    return count_on_cpu(kernel_tree(kernel), target)


def count_gpu_work(kernel: FuncOp) -> GpuWork:
    """The work of a kernel for a GPU, after stage `loops`. Blocks are taken as the first one is: predicates of accesses
    hold, and variables of loops begin."""
    return count_on_gpu(kernel_tree(kernel))


def kernel_tree(kernel: FuncOp) -> Kernel:
    """The loops, branches, accesses and operations of a kernel after stage `loops`."""
    return _KernelReader(kernel).tree()


class _KernelReader(ScalarRecorder):
    """Reads a kernel once, operation by operation."""

    def __init__(self, kernel: FuncOp):
        self._kernel = kernel
        self._root: list[Node] = []
        self._here = self._root
        self._known: dict[SSAValue, Value] = {}
        self._loads: set[Value] = set()

    def tree(self) -> Kernel:
        """The whole kernel."""
        kernel = self._kernel
        block = Variable("block", kernel.grid.value.data)
        thread = Variable("thread", kernel.threads.value.data)
        for value, variable in ((kernel.block_id, block), (kernel.thread_id, thread)):
            self._known[value] = Value(_INDEX, variable.position())
        tensors = [arg for arg in kernel.body.block.args if isinstance(arg.type, MemRefType)]
        allocs = [op.buffer for op in kernel.body.walk() if isinstance(op, AllocOp)]
        for each in (*tensors, *allocs):
            self._known[each] = Value(each.type)
            self._known[each].buffer = buffer_of(name_of(each), each.type)
        self._block(kernel.body.block)
        renew(self._root)
        finish(self._root)
        least = kernel.min_blocks_per_sm
        min_blocks = 1 if least is None else least.value.data
        arguments, own = ([self._buffer(each) for each in buffers] for buffers in (tensors, allocs))
        return Kernel(block.size, thread.size, min_blocks, block, thread, arguments, own, self._root)

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                self._loop(op)
            elif isinstance(op, scf.IfOp):
                self._branches(op)
            elif isinstance(op, scf.YieldOp):
                for each in op.operands:
                    self._read(each).used()
            elif op.dialect_name() in ("arith", "math"):
                self._known[op.results[0]] = self._of_operation(op, self._operands(op), op.results[0].type)
            else:
                self._operation(op)

    def _operation(self, op: Operation) -> None:
        """An operation that is not of scalars."""
        self._accesses(op)
        if isinstance(op, MmaOp):
            self._known[op.result] = cast("Value", self.mma(*self._operands(op)))
        elif isinstance(op, RoundTf32Op):
            self._known[op.results[0]] = cast("Value", self.round_tf32(*self._operands(op)))
        elif isinstance(op, LaneConvertOp | LaneLookupOp):
            cost = cost_of(arith.SIToFPOp, op.result.type)
            self._known[op.result] = self._given(self._operands(op), op.result.type, cost)
        elif isinstance(op, RoundPairOp):
            self._known[op.result] = self._given(self._operands(op), op.result.type, ROUND_PAIR)
        elif isinstance(op, MultiplyTilesOp):
            self._here.append(tiles_step(op.extents[0], op.steps, op.extents[1]))
        elif isinstance(op, ArriveOp):
            self._known[op.result] = Value(i1, None, (Chance(1 / op.count),))
        elif isinstance(op, AllocOp):
            self._here.append(Step(allocated=self._buffer(op.buffer)))
        elif isinstance(op, BarrierOp):
            self._here.append(Step(is_barrier=True))
        elif isinstance(op, TransposeOp):
            self._here.append(Step(cost=transposition(op.lanes)))
        elif isinstance(op, WaitOp):
            self._here.append(Step(pending=op.groups))
        for each in op.results:
            if each not in self._known:
                self._known[each] = self._indexed(self._given(self._operands(op), each.type))

    def _accesses(self, op: Operation, conditions: tuple[Condition, ...] | None = None) -> None:
        """What an operation reads and writes; under the conditions of a branch around it that does nothing else."""
        for each in accesses(op):
            buffer, indices = self._buffer(each.buffer), [self._read(index) for index in each.indices]
            predicate = () if each.predicate is None else self._read(each.predicate).conditions
            access = self._access(buffer, indices, each.is_store, (*(conditions or ()), *predicate))
            access.elements, access.stride, access.lanes = each.elements, each.stride, each.lanes
            access.is_async = isinstance(op, AsyncCopyOp)
            access.guarded = access.in_branch = conditions is not None
            access.masked = each.mask is not None
            buffer.has_masks = buffer.has_masks or access.masked
            if each.value is None:
                continue
            if each.is_store:
                stored = self._read(each.value)
                stored.used()
                access.value, access.adds_up = stored, buffer in stored.sources
            else:
                loaded = self._indexed(self._loaded(access, each.value.type))
                self._known[each.value] = loaded
                self._loads.add(loaded)

    def _loop(self, op: scf.ForOp) -> None:
        begin, end, step = (self._read(bound) for bound in (op.lb, op.ub, op.step))
        assert step.position is not None
        variable, *carried = op.body.block.args
        loop, position = self._counted(name_of(variable), begin, end, step.position.as_int or 1)
        loop.is_unrolled = _UNROLL in op.attributes
        self._known[variable] = Value(_INDEX, position)
        for each in carried:
            self._known[each] = self._indexed(Value(each.type))
        self._here.append(loop)
        with self._inside(loop.inside):
            self._block(op.body.block)
        self._join(op, op.iter_args, _yielded(op.body.block))

    def _branches(self, op: scf.IfOp) -> None:
        conditions = self._read(op.cond).conditions
        guarded = _guarded_load(op)
        then, otherwise = op.true_region.block, op.false_region.blocks.first
        if guarded is not None:
            self._accesses(guarded, conditions)
        else:
            self._branch(then, conditions)
        if otherwise is not None:
            self._branch(otherwise, (Otherwise(conditions),))
            self._join(op, _yielded(then), _yielded(otherwise))

    def _branch(self, block: Block, conditions: tuple[Condition, ...]) -> None:
        branch = Branch(conditions)
        with self._inside(branch.inside):
            self._block(block)
        if branch.inside:
            self._here.append(branch)

    def _join(self, op: Operation, first: Sequence[SSAValue], second: Sequence[SSAValue]) -> None:
        """The results of an operation, each of which is one of two values: the one that is only loaded, if there is."""
        for result, *sides in zip(op.results, first, second, strict=True):
            given = [self._read(side) for side in sides]
            loads = [value for value in given if value in self._loads]
            if isinstance(result.type, IndexType):
                self._known[result] = one_of(*given) if isinstance(op, scf.IfOp) else self._indexed(Value(result.type))
            elif loads:
                self._known[result] = loads[0]
            else:
                self._known[result] = found = Value(result.type)
                found.sources = given[0].sources | given[1].sources

    def _indexed(self, value: Value) -> Value:
        """A value, which is not known if it is an index."""
        if isinstance(value.type, IndexType):
            value.position = unknown_index()
        return value

    def _read(self, value: SSAValue) -> Value:
        return self._known[value]

    def _operands(self, op: Operation) -> tuple[Value, ...]:
        return tuple([self._known[operand] for operand in op.operands])

    def _buffer(self, value: SSAValue) -> Buffer:
        buffer = self._known[value].buffer
        assert buffer is not None
        return buffer


def _yielded(block: Block) -> Sequence[SSAValue]:
    """What a block gives to the operation around it."""
    return () if block.last_op is None else block.last_op.operands


def _guarded_load(op: scf.IfOp) -> Operation | None:
    """The load of a vector that a branch guards, and nothing else: on a CPU it counts as one under a mask, whose two
    operations the comparison and the jump take, however likely it is."""
    if not op.results or not isinstance(op.results[0].type, VectorType):
        return None
    first, last, other = op.true_region.block.first_op, op.true_region.block.last_op, op.false_region.block.first_op
    if first is None or first.next_op is not last or not isinstance(other, scf.YieldOp):
        return None
    return first if any(accesses(first)) else None
