"""Extents that depend on data, as the importer knows them (docs/adr/0047)."""

from __future__ import annotations

from typing import Generic, TypeVar

from treadle.dialects.graph.definition import Misfit
from treadle.frontends.common.extent import Extent, Symbol, expression_of
from treadle.index.expr import Expr

T = TypeVar("T")


class FoundExtents(Generic[T]):
    """The scalars of i64 that such extents are in a call, by the symbols' expressions."""

    def __init__(self) -> None:
        self.counts: dict[Expr, T] = {}

    def add(self, count: T, most: int) -> Extent:
        """A new extent, from 0 to `most`."""
        extent = Symbol(f"found{len(self.counts)}", 0, most)
        self.counts[expression_of(extent)] = count
        return extent

    def keep(self, number: int) -> None:
        """Only so many, the first ones."""
        self.counts = dict(list(self.counts.items())[:number])

    def count(self, expression: Expr) -> T | None:
        """The scalar of one of them; None for another extent. Misfit for what is computed from one."""
        found = self.counts.get(expression)
        if found is None and self.occur_in(expression):
            raise Misfit(
                f"an extent {expression}, which is computed from one that depends on data", "that extent itself"
            )
        return found

    def occur_in(self, expression: Expr) -> bool:
        """Whether an expression depends on any of them."""
        own = {symbol.vars()[0] for symbol in self.counts}
        return not own.isdisjoint(expression.vars())


__all__ = ["FoundExtents"]
