"""Blocks that work together: those that arrive at one counter."""

from __future__ import annotations

from treadle.dialects.loop import ArriveOp, KernelOp
from treadle.index.expr import Expr
from treadle.index.reader import IndexReader

_MOST_BLOCKS = 1 << 16
"""Blocks of a grid that are compared one by one."""


def agree(kernel: KernelOp, reader: IndexReader, e: Expr) -> bool:
    """Whether an expression of the block's number has one value for all blocks that arrive at the same counters.

    Blocks see what others store only there, so that either all of these may be left out, or none.
    """
    counters = [reader.read(op.index) for op in kernel.body.walk() if isinstance(op, ArriveOp)]
    grid, block = kernel.grid.value.data, kernel.block_id
    if not counters or grid > _MOST_BLOCKS or any(v.key is not block for each in (e, *counters) for v in each.vars()):
        return False
    values: dict[tuple[int, ...], int] = {}
    for number in range(grid):
        at = {block: number}
        value = e.evaluate(at)
        if values.setdefault(tuple(counter.evaluate(at) for counter in counters), value) != value:
            return False
    return True


__all__ = ["agree"]
