"""Counts the work of a lowered kernel for a GPU: operations, what its warps ask of memories, and what it waits for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects import memref, scf, vector
from xdsl.dialects.builtin import MemRefType, VectorType
from xdsl.ir import Block, Operation, OpResult, SSAValue

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import (
    AllocOp,
    AsyncCopyOp,
    BarrierOp,
    FuncOp,
    LoadOp,
    MmaOp,
    RoundTf32Op,
    Space,
    SpaceAttr,
    StoreOp,
    WaitOp,
    swizzle_of,
)
from treadle.dialects.loop.accesses import Access, accesses
from treadle.dialects.loop.tiles import SECTOR_BYTES, WARP
from treadle.index.algebra import depends_on
from treadle.index.expr import Expr
from treadle.passes.loop.count_work import Unclamped, mean_trips, probability
from treadle.schedules.work.gpu_work import (
    OTHER_REGISTERS,
    ROUNDING,
    Addresses,
    GpuWork,
    in_warps,
    op_cost,
    sectors,
    shared_cycles,
)

_REGISTER_BYTES = 4


def count_gpu_work(kernel: FuncOp) -> GpuWork:
    """The work of a kernel for a GPU, after stage `loops`. Blocks are taken as the first one is: predicates of accesses
    hold, and variables of loops begin."""
    return _GpuCounter(kernel).work()


class _GpuCounter:
    """Walks a kernel once; `times` are executions by one thread."""

    def __init__(self, kernel: FuncOp):
        self._kernel, self._reader = kernel, Unclamped()
        self._threads = np.arange(kernel.threads.value.data)
        self._warps = -(-len(self._threads) // WARP)
        self._loops: list[tuple[scf.ForOp, float]] = []
        """The loops around, with their trips."""
        self._written: dict[scf.ForOp, set[SSAValue]] = {}
        self._operations = self._tensor = self._sectors = self._loads = self._stores = self._accesses = 0.0
        self._steps = self._round_trips = self._barriers = 0.0
        self._tensor_bytes = self._ahead = 0

    def work(self) -> GpuWork:
        """The counts."""
        kernel = self._kernel
        self._region(kernel.body.block, 1.0)
        allocs = [op for op in kernel.body.walk() if isinstance(op, AllocOp)]
        shared = sum(_bytes_of(op.buffer.type) for op in allocs if _space_of(op.buffer) is Space.SHARED)
        tensors = [arg.type for arg in kernel.body.block.args if isinstance(arg.type, MemRefType)]
        least = kernel.min_blocks_per_sm
        return GpuWork(
            blocks=kernel.grid.value.data,
            threads=len(self._threads),
            registers=_live_registers(kernel, allocs) + OTHER_REGISTERS,
            min_blocks=1 if least is None else least.value.data,
            shared_bytes=shared,
            operations=self._operations * len(self._threads),
            tensor_flops=self._tensor * self._warps,
            tensor_bytes=self._tensor_bytes,
            sectors=self._sectors,
            shared_loads=self._loads,
            shared_stores=self._stores,
            accesses=self._accesses * self._warps,
            steps=self._steps,
            ahead=self._ahead,
            round_trips=self._round_trips,
            barriers=self._barriers,
            bytes=sum(map(_bytes_of, tensors)),
        )

    def _region(self, block: Block, times: float) -> None:
        """Straight code: a loop's body that is not unrolled, or what is outside of such loops."""
        code = list(_straight(block))
        waits = [op.groups for op in code if isinstance(op, WaitOp)]
        loads = [op for op in code if any(_is_global(a) and not a.is_store for a in accesses(op))]
        plain = [op for op in loads if not isinstance(op, AsyncCopyOp)]
        if len(plain) < len(loads) and waits:
            self._loads_ahead(times, min(waits) + 1)
        if plain and _waits_at_once(code, plain):
            self._round_trips += times
        elif plain:
            self._loads_ahead(times, 1)
        self._block(block, times)

    def _loads_ahead(self, times: float, ahead: int) -> None:
        if times >= self._steps:
            self._steps, self._ahead = times, ahead

    def _block(self, block: Block, times: float) -> None:
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                self._loop(op, times)
            elif isinstance(op, scf.IfOp):
                likely = probability(op.cond, self._reader, self._kernel.block_id)
                for region, part in ((op.true_region, likely), (op.false_region, 1 - likely)):
                    if region.blocks and part:
                        self._block(region.block, times * part)
            else:
                self._operation(op, times)

    def _loop(self, loop: scf.ForOp, times: float) -> None:
        trips = mean_trips(loop, self._reader)
        self._loops.append((loop, trips))
        if _is_unrolled(loop):
            self._block(loop.body.block, times * trips)
        else:
            self._region(loop.body.block, times * trips)
        self._loops.pop()

    def _operation(self, op: Operation, times: float) -> None:
        for access in accesses(op):
            self._access(access, times)
        if isinstance(op, BarrierOp):
            self._barriers += times
        elif isinstance(op, MmaOp):
            a, c = op.a.type, op.c.type
            assert isinstance(a, VectorType) and isinstance(c, VectorType)
            # A lane has a 32nd of each operand, C's are 16 x 8.
            k = prod(a.get_shape()) * WARP // 16
            self._tensor += times * 2 * 16 * 8 * k
            self._tensor_bytes = byte_width(a.element_type)
        elif isinstance(op, RoundTf32Op):
            type = op.value.type
            self._operations += times * ROUNDING * (type.element_count() if isinstance(type, VectorType) else 1)
        else:
            self._operations += times * op_cost(op)

    def _access(self, access: Access, times: float) -> None:
        space, size = access.space, access.element_bytes
        if space is Space.REGISTER or size is None:
            return
        indices = [self._reader.read(index) for index in access.indices]
        times *= self._invariance(access, indices)
        self._accesses += times
        width, found = size * access.elements, self._addresses(access, indices)
        if space is not Space.SHARED:
            whole = self._warps * min(access.lanes, WARP) * max(1, width // SECTOR_BYTES)
            self._sectors += times * (whole if found is None else sectors(in_warps(found, access.lanes), width))
            return
        cycles = self._warps if found is None else shared_cycles(in_warps(found, access.lanes), width)
        if access.is_store:
            self._stores += times * cycles
        else:
            self._loads += times * cycles

    def _addresses(self, access: Access, indices: Sequence[Expr]) -> Addresses | None:
        """Where the threads of a block access a buffer; None where that depends on data."""
        at: dict[Any, Any] = {}
        for variable in (v for index in indices for v in index.vars()):
            if variable.range[0] is None or _is_data(variable.key):
                return None
            at[variable.key] = variable.range[0]
        at[self._kernel.thread_id] = self._threads
        position = [index.evaluate(at) for index in indices]
        swizzle = swizzle_of(access.type)
        if swizzle is not None:
            position[-1] = swizzle.column(position[-2], position[-1])
        total: Any = sum(index * stride for index, stride in zip(position, access.strides, strict=True))
        return np.broadcast_to(total * (access.element_bytes or 1), self._threads.shape)

    def _invariance(self, access: Access, indices: Sequence[Expr]) -> float:
        """What hoisting leaves of a load: it is out of the innermost unrolled loops along which it does not move, if
        these do not write what it reads."""
        times = 1.0
        for loop, trips in reversed(self._loops):
            if access.is_store or not _is_unrolled(loop) or access.buffer in self._writes(loop):
                break
            if not any(depends_on(index, loop.body.block.args[0]) for index in indices):
                times /= trips
        return times

    def _writes(self, loop: scf.ForOp) -> set[SSAValue]:
        """The buffers that a loop writes."""
        if loop not in self._written:
            found = (access for op in loop.walk() for access in accesses(op))
            self._written[loop] = {access.buffer for access in found if access.is_store}
        return self._written[loop]


def _is_data(value: Hashable) -> bool:
    """Whether an index is computed from memory; others that are no arithmetic, such as what blocks select, are not."""
    todo, seen = [value], set[Hashable]()
    while todo:
        value = todo.pop()
        if value in seen or not isinstance(value, OpResult):
            continue
        seen.add(value)
        if accesses(value.op):
            return True
        todo += value.op.operands
    return False


def _is_unrolled(loop: scf.ForOp) -> bool:
    return "loop.unroll" in loop.attributes


def _straight(block: Block) -> Sequence[Operation]:
    """The operations of a block with those of branches and unrolled loops, in order; other loops as one."""
    found: list[Operation] = []
    for op in block.ops:
        if isinstance(op, scf.IfOp) or (isinstance(op, scf.ForOp) and _is_unrolled(op)):
            for region in op.regions:
                for inner in region.blocks:
                    found += _straight(inner)
        else:
            found.append(op)
    return found


def _waits_at_once(code: Sequence[Operation], loads: Sequence[Operation]) -> bool:
    """Whether what is loaded is used before anything else is computed; in registers it only waits."""
    pending: set[SSAValue] = set()
    worked = False
    for op in code:
        if op in loads:
            pending |= set(op.results)
        elif isinstance(op, StoreOp | memref.StoreOp | vector.StoreOp) and _stored(op) in pending:
            (access,) = accesses(op)
            if access.space is not Space.REGISTER:
                return not worked
            pending.add(access.buffer)
        elif isinstance(op, LoadOp | memref.LoadOp | vector.LoadOp):
            pending |= set(op.results) if accesses(op)[0].buffer in pending else set()
        elif isinstance(op, scf.YieldOp):
            outer = op.parent_op()
            assert outer is not None
            pending |= {value for value, given in zip(outer.results, op.operands, strict=True) if given in pending}
        elif pending & set(op.operands):
            return not worked
        worked = worked or (bool(pending) and (isinstance(op, MmaOp | scf.ForOp) or op_cost(op) > 0))
    return False


def _stored(op: StoreOp | memref.StoreOp | vector.StoreOp) -> SSAValue:
    return op.vector if isinstance(op, vector.StoreOp) else op.value


def _is_global(access: Access) -> bool:
    return access.space not in (Space.REGISTER, Space.SHARED)


def _live_registers(kernel: FuncOp, allocs: Sequence[AllocOp]) -> int:
    """Registers of a thread's arrays where most of them are live at once."""
    order = {op: n for n, op in enumerate(kernel.body.walk())}
    ends: list[tuple[int, int]] = []
    for op in allocs:
        if _space_of(op.buffer) is not Space.REGISTER:
            continue
        last = max((order[use.operation] for use in op.buffer.uses), default=order[op])
        registers = -(-_bytes_of(op.buffer.type) // _REGISTER_BYTES)
        ends += [(order[op], registers), (last + 1, -registers)]
    live = most = 0
    for _, change in sorted(ends):
        live += change
        most = max(most, live)
    return most


def _space_of(buffer: SSAValue) -> Space | None:
    space = buffer.type.memory_space if isinstance(buffer.type, MemRefType) else None
    return space.data if isinstance(space, SpaceAttr) else None


def _bytes_of(type: Any) -> int:
    assert isinstance(type, MemRefType)
    element = type.get_element_type()
    if isinstance(element, VectorType):
        return prod(type.get_shape()) * element.element_count() * byte_width(element.get_element_type())
    return prod(type.get_shape()) * byte_width(element)


__all__ = ["count_gpu_work"]
