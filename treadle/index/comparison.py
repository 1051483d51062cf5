"""Comparisons of indices in one form: the sign of a difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.index.expr import Expr
from treadle.index.linear import always_less
from treadle.index.ranges import Range

_NEGATED = {"slt": "sge", "sge": "slt", "sle": "sgt", "sgt": "sle", "eq": "ne", "ne": "eq"}


@dataclass(frozen=True)
class Comparison:
    """`difference kind 0` for a kind of `slt sle sgt sge eq ne`."""

    kind: str
    difference: Expr

    def negated(self) -> Comparison:
        """The negation."""
        return Comparison(_NEGATED[self.kind], self.difference)

    def truth(self) -> bool | None:
        """Whether it is true for all values in range, or for none; None where the ranges do not decide it."""
        if self.kind in ("slt", "sge"):
            below = always_less(self.difference, 0)
            return below if self.kind == "slt" or below is None else not below
        if self.kind in ("sle", "sgt"):
            below = always_less(self.difference, 1)
            return below if self.kind == "sle" or below is None else not below
        lo, hi = self.difference.range()
        if lo == hi == 0:
            return self.kind == "eq"
        apart = (lo is not None and lo > 0) or (hi is not None and hi < 0)
        return self.kind == "ne" if apart else None


def comparisons_of(kind: str, lhs: Expr, rhs: Expr) -> tuple[Comparison, ...] | None:
    """The conjunction that is `lhs kind rhs`, a kind of `arith.cmpi`; None where an unsigned one has no signed
    form."""
    if not kind.startswith("u"):
        return (Comparison(kind, lhs - rhs),)
    signed = Comparison(f"s{kind[1:]}", lhs - rhs)
    if is_natural(lhs) and is_natural(rhs):
        return (signed,)
    if kind in ("ult", "ule") and is_natural(rhs):
        return (Comparison("sge", lhs), signed)
    return None


def truth_of(comparisons: Sequence[Comparison] | None) -> bool | None:
    """Whether all comparisons are true for all values in range (True), or one of them for none (False)."""
    truths = [None] if comparisons is None else [comparison.truth() for comparison in comparisons]
    if False in truths:
        return False
    return None if None in truths else True


def is_natural(e: Expr) -> bool:
    """Whether e is never negative, by the ranges."""
    lo, _ = e.range()
    return lo is not None and lo >= 0


def likelihood(kind: str, bounds: Range) -> float:
    """The fraction of a range of integers for which a comparison with 0 is true; 1 of a range without ends."""
    lo, hi = bounds
    if lo is None or hi is None:
        return 1.0
    size = hi - lo + 1
    below = min(max(0 - lo, 0), size)
    zero = 1 if lo <= 0 <= hi else 0
    counted = {"slt": below, "sle": below + zero, "sgt": size - below - zero, "sge": size - below, "eq": zero}
    return counted.get(kind, size - zero) / size
