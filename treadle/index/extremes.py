"""The smallest and the largest value of an expression, over all values of its variables."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from treadle.index.atom import Atom, Div, Mod, Var
from treadle.index.expr import Expr
from treadle.index.ranges import Range

MOST_POINTS = 1 << 16
"""Combinations of values that are tried, at most."""
_LARGEST = 1 << 62
"""Below it no sum of 64 bits wraps."""


@lru_cache(maxsize=4096)
def extremes(e: Expr) -> Range:
    """Inclusive bounds of an expression, never tighter than its values are; None where unbounded.

    They are met where the expression rises or falls with each variable, or where the values of the others are few
    enough to try all: `x - x // 2` of x in 1 to 20 is 1 to 10, where `Expr.range` says -9 to 20.
    """
    low, high = e.range()
    if not e.terms or low is None or high is None or _magnitude(e) >= _LARGEST:
        return low, high
    directions = _directions(e)
    others = [v for v, direction in directions.items() if direction == 0]
    counts = [_count(v) for v in others]
    if prod(counts) > MOST_POINTS:
        return low, high
    points = np.indices(counts).reshape(len(counts), prod(counts))
    free = {v.key: points[n] + _bounds(v)[0] for n, v in enumerate(others)}
    ends = [
        {v.key: _bounds(v)[(direction > 0) == highest] for v, direction in directions.items() if direction}
        for highest in (False, True)
    ]
    least, greatest = (np.asarray(e.evaluate(free | end)) for end in ends)  # pyright: ignore[reportArgumentType]
    return int(least.min()), int(greatest.max())


def _bounds(v: Var) -> tuple[int, int]:
    assert v.lo is not None and v.hi is not None
    return v.lo, v.hi


def _count(v: Var) -> int:
    return _bounds(v)[1] - _bounds(v)[0] + 1


def _directions(e: Expr) -> dict[Var, int]:
    """For each variable 1 if the expression never falls with it, -1 if it never rises, 0 if neither is known."""
    found: dict[Var, int] = {}
    for monomial, coefficient in e.terms:
        positive = len(monomial) == 1 or all(atom.range[0] is not None and atom.range[0] >= 0 for atom in monomial)
        sign = (1 if coefficient > 0 else -1) if positive else 0
        for atom in monomial:
            for v, direction in _directions_of_atom(atom).items():
                moved = direction * sign
                found[v] = moved if found.setdefault(v, moved) == moved else 0
    return found


def _directions_of_atom(atom: Atom) -> dict[Var, int]:
    if isinstance(atom, Div):
        return _directions(atom.arg)
    if isinstance(atom, Mod):
        return dict.fromkeys(atom.arg.vars(), 0)
    return {atom: 1} if isinstance(atom, Var) else {}


def _magnitude(e: Expr) -> int:
    """The largest magnitude of any sum of its terms, and of those in its quotients; beyond all where unbounded."""
    total, inner = abs(e.constant), 0
    for monomial, coefficient in e.terms:
        size = abs(coefficient)
        for atom in monomial:
            low, high = atom.range
            if low is None or high is None:
                return _LARGEST
            size *= max(abs(low), abs(high), 1)
            inner = max(inner, _magnitude(atom.arg) if isinstance(atom, Div | Mod) else 0)
        total += size
    return max(total, inner)


__all__ = ["MOST_POINTS", "extremes"]
