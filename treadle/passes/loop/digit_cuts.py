"""Where a loop's variable is taken apart: the divisors of the quotients and remainders over it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.loop import FuncOp, KernelOp
from treadle.index.atom import Atom, Div, Mod, Var
from treadle.index.expr import Expr
from treadle.index.reader import IndexReader

DIVISIONS = (arith.DivUIOp, arith.RemUIOp, arith.FloorDivSIOp, arith.DivSIOp, arith.RemSIOp)
_ARITHMETIC = (*DIVISIONS, arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.ConstantOp)


def digit_cuts(kernel: KernelOp | FuncOp) -> dict[SSAValue, set[int]]:
    """For each variable v of which a kernel's indices use v / d, v % b or (v / a) % b: all d, b, a and a * b.

    Only quotients and remainders of the variable itself count, after simplification: those of a sum are no
    digits of its parts.
    """
    operations = list(kernel.body.block.walk())
    if not any(isinstance(op, DIVISIONS) for op in operations):
        return {}
    collector = _Collector()
    reader = IndexReader()
    for operand in _used_indices(operations):
        collector.visit(reader.read(operand))
    return collector.cuts


def divisor_chain(cuts: Iterable[int], extent: int) -> Sequence[int]:
    """The longest ascending list of cuts in which each divides the next, and the last divides `extent`."""
    chains: list[tuple[int, ...]] = []
    for cut in sorted(c for c in cuts if 1 < c < extent and extent % c == 0):
        best = max((chain for chain in chains if cut % chain[-1] == 0), key=len, default=())
        chains.append((*best, cut))
    return max(chains, key=len, default=())


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


class _Collector:
    """Gathers the cuts of every variable from expressions; each expression and atom is visited once."""

    def __init__(self) -> None:
        self.cuts: dict[SSAValue, set[int]] = {}
        self._seen: set[Atom] = set()

    def visit(self, expr: Expr) -> None:
        for monomial, _ in expr.terms:
            for atom in monomial:
                if isinstance(atom, Div | Mod) and atom not in self._seen:
                    self._seen.add(atom)
                    self._atom(atom)

    def _atom(self, atom: Div | Mod) -> None:
        inner = atom.arg.as_atom()
        scale = 1
        if isinstance(inner, Div):
            # (v / a) % b takes digits at a, which the inner quotient gives below, and at a * b.
            scale, inner = inner.divisor, inner.arg.as_atom()
        if isinstance(inner, Var) and isinstance(inner.key, SSAValue):
            self.cuts.setdefault(inner.key, set()).add(scale * atom.divisor)
        self.visit(atom.arg)


__all__ = ["DIVISIONS", "digit_cuts", "divisor_chain"]
