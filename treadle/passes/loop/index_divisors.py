"""The divisors of the quotients and remainders in a kernel's index arithmetic."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.loop import FuncOp, KernelOp
from treadle.index.algebra import divisors_of
from treadle.index.reader import IndexReader

DIVISIONS = (arith.DivUIOp, arith.RemUIOp, arith.FloorDivSIOp, arith.DivSIOp, arith.RemSIOp)
_ARITHMETIC = (*DIVISIONS, arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.ConstantOp)


def index_divisors(kernel: KernelOp | FuncOp) -> dict[Hashable, set[int]]:
    """What `divisors_of` gives for each value that a kernel's indices are computed from, after simplification."""
    operations = list(kernel.body.block.walk())
    if not any(isinstance(op, DIVISIONS) for op in operations):
        return {}
    reader = IndexReader()
    return divisors_of(reader.read(operand) for operand in _used_indices(operations))


def _used_indices(operations: Iterable[Operation]) -> Iterable[SSAValue]:
    """The indices that something other than index arithmetic uses."""
    seen: set[SSAValue] = set()
    for op in operations:
        if isinstance(op, _ARITHMETIC):
            continue
        for operand in op.operands:
            if operand not in seen and isinstance(operand.type, IndexType):
                seen.add(operand)
                yield operand


__all__ = ["DIVISIONS", "index_divisors"]
