"""What the loop passes share: the kernels of a module, how often loops run, dead code."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Block, SSAValue

from treadle.dialects.effects import is_pure
from treadle.dialects.loop import FuncOp, KernelOp
from treadle.index.reader import IndexReader


def kernels_of(module: ModuleOp) -> Iterator[KernelOp | FuncOp]:
    """Every kernel of a module, before or after memory planning."""
    for op in list(module.body.block.ops):
        if isinstance(op, FuncOp):
            yield op
        else:
            yield from [kernel for kernel in op.walk() if isinstance(kernel, KernelOp)]


def constant_index(value: SSAValue) -> int | None:
    """The integer that an `arith.constant` gives."""
    op = value.owner
    if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return op.value.value.data
    return None


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


def erase_dead(block: Block) -> None:
    """Erases pure operations without uses, in this block and those inside it."""
    for op in reversed(list(block.ops)):
        for region in op.regions:
            for inner in region.blocks:
                erase_dead(inner)
        if not any(result.first_use for result in op.results) and is_pure(op):
            op.detach()
            op.erase()
