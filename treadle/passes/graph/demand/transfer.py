"""What facts about a read say of the tensor that is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from math import isqrt

from treadle.dialects.graph.fused import Constraint, dimension
from treadle.index.expr import Expr, var
from treadle.passes.graph.demand.facts import Facts, fact


def facts_of_source(facts: Facts, indices: Sequence[Expr], shape: Sequence[int]) -> Facts:
    """What holds of each element of a tensor that is read at `indices` where the facts hold, over its dimensions.

    A fact says of a source that `g < extent` if g is an expression of the source's indices that is never larger, at the
    indices that are read, than what the fact is about. Tried for g are the digits of each dimension, and of two
    dimensions that follow each other, where they have exactly the fact's value; then each dimension by itself.
    """
    transfer = _Transfer(indices, shape)
    found: dict[tuple[Expr, int], int] = {}
    for (e, extent), constant in facts.items():
        constraint = transfer.constraint(e + constant, extent)
        if constraint is not None:
            key, least = fact(constraint.index, constraint.extent)
            found[key] = max(least, found.get(key, least))
    return found


class _Transfer:
    """One read of a tensor: its indices, as expressions, and the digits that are taken of them."""

    def __init__(self, indices: Sequence[Expr], shape: Sequence[int]):
        self._indices, self._shape = indices, shape
        self._variables = [var(("index", d), 0, extent - 1) for d, extent in enumerate(shape)]
        self._read_by = {v for index in indices for v in index.vars()}

    def constraint(self, e: Expr, extent: int) -> Constraint | None:
        """What `e < extent` says of the source; None if it says nothing."""
        if not self._read_by.intersection(e.vars()):
            return None
        candidates = self._digits(e) if self._read_by.issuperset(e.vars()) else iter(())
        for digits in candidates:
            rest = (e - Constraint(digits, extent).at(self._indices)).as_int()
            if rest is not None:
                return self._telling(digits + rest, extent)
        return self._bounded(e, extent)

    def _digits(self, e: Expr) -> Iterator[Expr]:
        """Digits of the source's dimensions that may have the value of e: all quotients, then remainders of them by the
        number of values that e has."""
        lo, hi = e.range()
        count = None if lo is None or hi is None else hi - lo + 1
        whole = [(dimension(d), extent) for d, extent in enumerate(self._shape) if extent > 1]
        merged = [(a * n + b, m * n) for (a, m), (b, n) in pairwise(whole)]
        yield from (digits for digits, _ in whole)
        for digits, extent in (*whole, *merged):
            quotients = [(c, digits // c) for c in _divisors(extent) if c < extent]
            yield from (quotient for _, quotient in quotients)
            if count is not None:
                yield from (quotient % count for c, quotient in quotients if 1 < count < extent // c)

    def _bounded(self, e: Expr, extent: int) -> Constraint | None:
        """The closest of the constraints on a dimension by itself that e implies."""
        best: tuple[int, Constraint] | None = None
        for d, index in enumerate(self._indices):
            if not set(index.vars()).intersection(e.vars()):
                continue
            lo, hi = (e - index).range()
            if lo is None or hi is None:
                continue
            telling = self._telling(dimension(d) + lo, extent)
            if telling is not None and (best is None or hi - lo < best[0]):
                best = hi - lo, telling
        return None if best is None else best[1]

    def _telling(self, g: Expr, extent: int) -> Constraint | None:
        """The constraint `g < extent`, unless it holds of all elements whatever the extent, which is at least 1."""
        constraint = Constraint(g, extent)
        most = constraint.at(self._variables).range()[1]
        return constraint if most is None or most > 0 else None


@cache
def _divisors(n: int) -> list[int]:
    small = [c for c in range(1, isqrt(n) + 1) if n % c == 0]
    return sorted({*small, *(n // c for c in small)})


__all__ = ["facts_of_source"]
