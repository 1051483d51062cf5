"""What the loop passes share: the kernels of a module, dead code."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, SSAValue

from treadle.dialects.effects import is_pure
from treadle.dialects.loop import FuncOp, KernelOp


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


def erase_dead(block: Block) -> None:
    """Erases pure operations without uses, in this block and those inside it."""
    for op in reversed(list(block.ops)):
        for region in op.regions:
            for inner in region.blocks:
                erase_dead(inner)
        if not any(result.first_use for result in op.results) and is_pure(op):
            op.detach()
            op.erase()
