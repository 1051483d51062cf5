"""How often loops run."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block

from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import constant_index


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


__all__ = ["loops_in", "most_trips", "trip_count"]
