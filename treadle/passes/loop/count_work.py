"""Counts the work of a lowered kernel: the operations of its straight-line code, and its cache traffic."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, MemRefType, VectorType
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.loop import ArriveOp, FuncOp, Space
from treadle.dialects.loop.accesses import Access, accesses, buffer_bytes
from treadle.index.algebra import depends_on, likelihood
from treadle.index.expr import Expr, const
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import constant_index
from treadle.schedules.access_analysis import digits_of
from treadle.schedules.work.cpu_work import (
    REGISTER_BYTES,
    Body,
    Touch,
    TouchNode,
    Work,
    masked_accesses,
    reuse_of,
    strided_loads,
)
from treadle.schedules.work.gpu_work import op_cost

# How often the code of a kernel runs, as cost models count it: trips, probabilities of branches, indices inside.


class Unclamped(IndexReader):
    """Reads an index as if it were not clamped: as far as tiles do not overhang, it is not."""

    def read(self, value: SSAValue) -> Expr:
        op = value.owner
        if isinstance(op, arith.MinSIOp | arith.MaxSIOp):
            return self.read(op.rhs if isinstance(op.lhs.owner, arith.ConstantOp) else op.lhs)
        return super().read(value)


def mean_trips(loop: scf.ForOp, reader: IndexReader) -> float:
    """The trip count of a loop; of bounds that depend on other variables, at the middle of their range."""
    (lo, first), (end, last) = reader.read(loop.lb).range(), reader.read(loop.ub).range()
    step = reader.read(loop.step).as_int() or 1
    if lo is None or first is None or end is None or last is None:
        return 1.0
    return max(1.0, ((end + last) / 2 - (lo + first) / 2) / step)


def probability(condition: SSAValue, reader: IndexReader, taken: SSAValue | None = None) -> float:
    """The probability of a condition, if each value of the index that it compares is equally likely. Comparisons of
    what depends on the index `taken` are true."""
    op = condition.owner
    if isinstance(op, arith.AndIOp):
        return probability(op.lhs, reader, taken) * probability(op.rhs, reader, taken)
    if isinstance(op, arith.OrIOp):
        neither = [1 - probability(side, reader, taken) for side in op.operands]
        return 1 - neither[0] * neither[1]
    if isinstance(op, ArriveOp):
        return 1 / op.blocks.value.data
    if not isinstance(op, arith.CmpiOp) or not isinstance(op.lhs.type, IndexType):
        return 1.0
    comparisons = reader.comparisons(op)
    if comparisons is None or len(comparisons) != 1 or depends_on(comparisons[0].difference, taken):
        return 1.0
    return likelihood(comparisons[0].kind, comparisons[0].difference.range())


# How often loops run.


def trip_count(loop: scf.ForOp) -> int | None:
    """How many times a loop over `index` runs; None where its bounds or its step are no constants."""
    lo, end, step = (constant_index(bound) for bound in (loop.lb, loop.ub, loop.step))
    if lo is None or end is None or step is None or step < 1 or not isinstance(loop.lb.type, IndexType):
        return None
    return max(0, -((lo - end) // step))


def most_trips(loop: scf.ForOp, reader: IndexReader) -> int | None:
    """How many times a loop over `index` runs at most, by the range of where it ends; None where its beginning or its
    step is no constant, or the end has no upper limit."""
    lo, step, (_, end) = constant_index(loop.lb), constant_index(loop.step), reader.read(loop.ub).range()
    if lo is None or end is None or step is None or step < 1 or not isinstance(loop.lb.type, IndexType):
        return None
    return max(0, -((lo - end) // step))


def loops_in(block: Block) -> Iterator[scf.ForOp]:
    """Every `scf.for` in a block, outer loops before those inside them."""
    for op in block.ops:
        if isinstance(op, scf.ForOp):
            yield op
        for region in op.regions:
            for inner in region.blocks:
                yield from loops_in(inner)


_UNROLL = "loop.unroll"


def count_work(kernel: FuncOp, workers: int) -> Work:
    """The work of a kernel whose blocks are distributed to `workers`, each of which has a contiguous share."""
    blocks, threads = kernel.grid.value.data, kernel.threads.value.data
    share = max(1.0, blocks / workers)
    counter = _KernelCounter(_masked_buffers(kernel))
    counter.block(kernel.body.block, 1.0)
    root = TouchNode(kernel.block_id, share, counter.roots)
    return Work(blocks, threads, tuple(counter.bodies), reuse_of(root), share)


@dataclass
class _Counts:
    """The counts of a block of operations."""

    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    chain: float = 0.0
    masked: float = 0.0

    def add(self, other: _Counts, times: float) -> None:
        """Adds another block's counts, multiplied."""
        self.arithmetic += other.arithmetic * times
        self.loads += other.loads * times
        self.stores += other.stores * times
        self.masked += other.masked * times


class _KernelCounter:
    """Walks a kernel once."""

    def __init__(self, in_memory: set[SSAValue]) -> None:
        self.bodies: list[Body] = []
        self._in_memory = in_memory
        self.roots: list[TouchNode | Touch] = []
        self._reader = Unclamped()
        self._loops: list[tuple[SSAValue, float, bool]] = []
        """The loops around: variable, trips, whether unrolled."""
        self._children = [self.roots]
        self._steps: dict[Hashable, int] = {}

    def block(self, block: Block, executions: float) -> None:
        """Counts a block of operations as a body of its own, with its executions in a block of the grid."""
        counts = self._counts(block, executions)
        if counts.arithmetic or counts.loads or counts.stores:
            self.bodies.append(Body(executions, **vars(counts)))

    def _counts(self, block: Block, executions: float) -> _Counts:
        counts = _Counts()
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                self._loop(op, counts, executions)
            elif isinstance(op, scf.IfOp) and (load := _guarded_load(op)) is not None:
                self._operation(load, counts)
                counts.masked += sum(access.mask is None for access in accesses(load))
            elif isinstance(op, scf.IfOp):
                self._branches(op, counts, executions)
            else:
                self._operation(op, counts)
        return counts

    def _loop(self, loop: scf.ForOp, counts: _Counts, executions: float) -> None:
        trips, variable = mean_trips(loop, self._reader), loop.body.block.args[0]
        unrolled = _UNROLL in loop.attributes
        node = TouchNode(variable, trips)
        self._children[-1].append(node)
        self._children.append(node.inside)
        self._loops.append((variable, trips, unrolled))
        self._steps[variable] = self._reader.read(loop.step).as_int() or 1
        if unrolled:
            inner = self._counts(loop.body.block, executions * trips)
            counts.add(inner, trips)
            counts.chain = max(counts.chain, inner.chain)
        else:
            self.block(loop.body.block, executions * trips)
        self._loops.pop()
        self._children.pop()

    def _branches(self, op: scf.IfOp, counts: _Counts, executions: float) -> None:
        likely = probability(op.cond, self._reader)
        for region, part in ((op.true_region, likely), (op.false_region, 1 - likely)):
            if not region.blocks or part == 0:
                continue
            node = TouchNode(op, 1.0, weight=part)
            self._children[-1].append(node)
            self._children.append(node.inside)
            inner = self._counts(region.block, executions * part)
            self._children.pop()
            counts.add(inner, part)
            counts.chain = max(counts.chain, inner.chain)

    def _operation(self, op: Operation, counts: _Counts) -> None:
        for access in accesses(op):
            self._access(access, op, counts)
        counts.arithmetic += op_cost(op)

    def _access(self, access: Access, op: Operation, counts: _Counts) -> None:
        indices = [self._reader.read(index) for index in access.indices]
        if access.mask is not None:
            counts.masked += masked_accesses(access.elements, access.stride)
        if self._is_register(access):
            if access.is_store and _accumulates(access, op):
                counts.chain = max(counts.chain, 1 / self._invariance(indices))
            return
        times = self._invariance(indices)
        elements = float(access.elements) if access.stride > 1 else 1.0
        if access.is_store:
            counts.stores += times * elements
        else:
            counts.loads += times * strided_loads(elements, access.stride)
        size = buffer_bytes(access.type) // max(1, prod(access.type.get_shape()))
        strides = access.strides
        address = const(0)
        for index, stride in zip(indices, strides, strict=True):
            address = address + index * (stride * size)
        strided = access.stride > 1
        own = [(float(access.elements), size * access.stride)] if strided else []
        width = size * access.elements if access.stride == 1 else size
        self._children[-1].append(Touch(access.buffer, width, own, digits_of(address, self._steps)))

    def _is_register(self, access: Access) -> bool:
        small = access.space is Space.REGISTER and buffer_bytes(access.type) <= REGISTER_BYTES
        return small and access.buffer not in self._in_memory

    def _invariance(self, indices: Sequence[Expr]) -> float:
        """What hoisting leaves of an access: it is out of the innermost unrolled loops along which it does not move."""
        times = 1.0
        for variable, trips, unrolled in reversed(self._loops):
            if not unrolled:
                break
            if not any(depends_on(index, variable) for index in indices):
                times /= trips
        return times


def _masked_buffers(kernel: FuncOp) -> set[SSAValue]:
    """The local buffers that masks access a part of: they are not kept in registers."""
    found = (access for op in kernel.walk() for access in accesses(op))
    return {each.buffer for each in found if each.mask is not None and each.space is Space.REGISTER}


def _guarded_load(op: scf.IfOp) -> Operation | None:
    """The load of a vector that a branch guards, and nothing else: it counts as one under a mask, whose two operations
    the comparison and the jump take, however likely it is."""
    if not op.results or not isinstance(op.results[0].type, VectorType):
        return None
    first, last, other = op.true_region.block.first_op, op.true_region.block.last_op, op.false_region.block.first_op
    if first is None or first.next_op is not last or not isinstance(other, scf.YieldOp):
        return None
    return first if any(accesses(first)) else None


def _accumulates(access: Access, op: Operation) -> bool:
    """Whether a store writes a value that was computed from the same buffer."""
    todo, seen = [value for value in op.operands if not isinstance(value.type, IndexType | MemRefType)], 0
    while todo and seen < 8:
        owner = todo.pop(0).owner
        seen += 1
        if not isinstance(owner, Operation):
            continue
        if any(each.buffer is access.buffer for each in accesses(owner)):
            return True
        todo += [value for value in owner.operands if not isinstance(value.type, IndexType | MemRefType)]
    return False
