"""The divisors of the quotients and remainders that expressions take of their variables."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from treadle.index.atom import Atom, Div, Mod, Var
from treadle.index.expr import Expr


def divisors_of(expressions: Iterable[Expr]) -> dict[Hashable, set[int]]:
    """For each variable v of which expressions have v / d, v % b or (v / a) % b: all d, b, a and a * b.

    Only quotients and remainders of the variable itself count: those of a sum are no digits of its parts.
    """
    collector = _Collector()
    for e in expressions:
        collector.visit(e)
    return collector.divisors


def divisor_chain(divisors: Iterable[int]) -> Sequence[int]:
    """The longest ascending list of divisors above 1 in which each divides the next."""
    chains: list[tuple[int, ...]] = []
    for divisor in sorted(d for d in divisors if d > 1):
        best = max((chain for chain in chains if divisor % chain[-1] == 0), key=len, default=())
        chains.append((*best, divisor))
    return max(chains, key=len, default=())


class _Collector:
    """Gathers the divisors of every variable from expressions; each expression and atom is visited once."""

    def __init__(self) -> None:
        self.divisors: dict[Hashable, set[int]] = {}
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
            # (v / a) % b divides by a, which the inner quotient gives below, and by a * b.
            scale, inner = inner.divisor, inner.arg.as_atom()
        if isinstance(inner, Var):
            self.divisors.setdefault(inner.key, set()).add(scale * atom.divisor)
        self.visit(atom.arg)


__all__ = ["divisor_chain", "divisors_of"]
