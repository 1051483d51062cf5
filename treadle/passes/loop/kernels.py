"""What the loop passes share: the kernels of a module, dead code."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import IsTerminator, Pure

from treadle.dialects.loop import FuncOp, KernelOp

_DIVISIONS = (arith.DivUIOp, arith.RemUIOp, arith.DivSIOp, arith.RemSIOp, arith.FloorDivSIOp)


def kernels_of(module: ModuleOp) -> Iterator[KernelOp | FuncOp]:
    """Every kernel of a module, before or after memory planning."""
    for op in list(module.walk()):
        if isinstance(op, KernelOp | FuncOp):
            yield op


def constant_index(value: SSAValue) -> int | None:
    """The integer that an `arith.constant` gives."""
    op = value.owner
    if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return op.value.value.data
    return None


def is_pure(op: Operation) -> bool:
    """Whether an operation only computes its results from its operands, and cannot trap."""
    if op.regions or op.has_trait(IsTerminator):
        return False
    if isinstance(op, _DIVISIONS):
        return bool(constant_index(op.rhs))
    return op.has_trait(Pure) or isinstance(op, arith.ExtSIOp | arith.ExtUIOp | arith.TruncIOp)


def erase_dead(block: Block) -> None:
    """Erases pure operations without uses, in this block and those inside it."""
    for op in reversed(list(block.ops)):
        for region in op.regions:
            for inner in region.blocks:
                erase_dead(inner)
        if is_pure(op) and not any(result.first_use for result in op.results):
            op.detach()
            op.erase()
