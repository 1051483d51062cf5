"""The loops of a kernel in terms of the numbers of their iterations, so that index algebra knows their steps."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue

from treadle.dialects.loop import KernelOp
from treadle.index.algebra import split_linear
from treadle.index.expr import Expr, Var, const, var
from treadle.index.reader import IndexReader


@dataclass(frozen=True)
class Iteration:
    """The key of the variable that counts the iterations of a loop."""

    variable: SSAValue


def value_of(v: Var) -> object:
    """The value that a variable stands for, or that of the loop whose iterations it counts."""
    key: object = v.key
    return key.variable if isinstance(key, Iteration) else key


class Iterations:
    """The loops of a kernel that begin at a constant and advance by another."""

    def __init__(self, kernel: KernelOp):
        reader = IndexReader()
        self.known: dict[SSAValue, Expr] = {}
        """The variable of each loop in terms of the number of the iteration."""
        self._back: dict[object, Expr] = {}
        self._steps: dict[object, tuple[Expr, int]] = {}
        for loop in (op for op in kernel.body.walk() if isinstance(op, scf.ForOp)):
            start, step = reader.read(loop.lb).as_int(), reader.read(loop.step).as_int()
            if start is None or step is None or step < 1 or not isinstance(loop.lb.type, IndexType):
                continue
            value = loop.body.block.args[0]
            own = reader.read(value)
            _, last = own.range()
            if last == start:
                continue
            count = var(Iteration(value), 0, None if last is None else max(0, (last - start) // step))
            self.known[value] = count * step + start
            self._back[Iteration(value)] = (own - start) // step
            self._steps[Iteration(value)] = own - start, step

    def in_values(self, e: Expr) -> Expr:
        """The expression in terms of the loops' variables."""
        total = const(e.constant)
        for monomial, k in e.terms:
            key: object = monomial[0].key if len(monomial) == 1 and isinstance(monomial[0], Var) else None
            travelled, step = self._steps.get(key, (total, 0))
            whole = step > 0 and k % step == 0
            total = total + (travelled * (k // step) if whole else Expr(((monomial, k),), 0).substitute(self._back))
        return total

    def end(self, loop: scf.ForOp, side: Expr, limit: Expr) -> Expr | None:
        """The value of the loop's variable from which on `side < limit` does not hold; None where there is no such one,
        or it takes a division."""
        value = loop.body.block.args[0]
        key = Iteration(value)
        known = self.known.get(value)
        split = split_linear(side, key)
        stride = None if split is None else split[0].as_int()
        if known is None or split is None or stride is None or stride < 1:
            return None
        start, step = known.constant, known.terms[0][1]
        # stride * n < room, where the variable is step * n + start.
        room = limit - self.in_values(split[1])
        factor = step // gcd(stride, step)
        return None if stride * factor != step else room * factor + const(start)


__all__ = ["Iteration", "Iterations", "value_of"]
