"""How many of a kernel's blocks do something in a call, where only the first ones do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects import arith, scf
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.effects import buffers_written, is_allocation, is_load, is_pure
from treadle.dialects.loop import FuncOp


def first_blocks(kernel: FuncOp) -> Sequence[SSAValue]:
    """Values of which each is at most the number of the first block, and of all later ones, that does nothing.

    A block does nothing where the branch that it consists of, but for arithmetic, reads and buffers, is not taken:
    where `number of the block < value` does not hold, which is all or a part of what is tested.
    """
    block = kernel.body.block
    rest = [op for op in block.ops if not (is_pure(op) or is_load(op) or is_allocation(op))]
    if len(rest) != 1 or not isinstance(branch := rest[0], scf.IfOp) or branch.results:
        return []
    if any(inner.first_op is not inner.last_op for inner in branch.false_region.blocks):
        return []
    return [test.rhs for test in _conjunction(branch.cond) if _is_on_block(test, kernel)]


def computation_of(value: SSAValue, kernel: FuncOp) -> Sequence[Operation] | None:
    """The operations that compute a value before any block runs, in order; None where it depends on the block, or on
    what blocks store."""
    written = {buffer for op in kernel.body.block.ops for buffer in buffers_written(op)}
    found: dict[Operation, None] = {}
    waiting = [value]
    while waiting:
        owner = waiting.pop().owner
        if isinstance(owner, Block):
            return None
        if owner in found:
            continue
        if owner.parent is not kernel.body.block or not (is_pure(owner) or is_load(owner)):
            return None
        found[owner] = None
        for operand in owner.operands:
            if operand in written or operand in (kernel.block_id, kernel.thread_id):
                return None
            if operand not in kernel.buffers:
                waiting.append(operand)
    return [op for op in kernel.body.block.ops if op in found]


def _conjunction(condition: SSAValue) -> Iterator[arith.CmpiOp]:
    op = condition.owner
    if isinstance(op, arith.AndIOp):
        yield from _conjunction(op.lhs)
        yield from _conjunction(op.rhs)
    elif isinstance(op, arith.CmpiOp):
        yield op


def _is_on_block(test: arith.CmpiOp, kernel: FuncOp) -> bool:
    is_less = arith.CMPI_COMPARISON_OPERATIONS[test.predicate.value.data] in ("slt", "ult")
    return is_less and test.lhs is kernel.block_id and computation_of(test.rhs, kernel) is not None


__all__ = ["computation_of", "first_blocks"]
