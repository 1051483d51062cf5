"""Predicates of a vectorised loop: from comparisons of indices to the lanes in which they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.ir import SSAValue

from treadle.index.algebra import Comparison, split_linear
from treadle.index.contiguity import LANE, varies
from treadle.index.expr import Expr, floordiv


class Unsupported(Exception):
    """The loop has something that has no vector form."""


@dataclass(frozen=True)
class Uniform:
    """A truth value that is the same in all lanes."""

    value: SSAValue


Condition: TypeAlias = Comparison | Uniform


def depends_on_lane(condition: Condition) -> bool:
    """Whether a condition may hold in some lanes and not in others."""
    return isinstance(condition, Comparison) and varies(condition.difference)


@dataclass(frozen=True)
class LaneRange:
    """Lanes from the largest of `lows` up to, without, the smallest of `highs`, if all of `uniform` hold."""

    lows: tuple[Expr, ...]
    highs: tuple[Expr, ...]
    uniform: tuple[Condition, ...]

    def is_everything(self) -> bool:
        return not (self.lows or self.highs or self.uniform)


def lanes_where(comparisons: Sequence[Condition], lanes: int) -> LaneRange:
    """The lanes in which all comparisons hold; Unsupported where one is not affine in the lane."""
    lows: list[Expr] = []
    highs: list[Expr] = []
    uniform: list[Condition] = []
    for comparison in comparisons:
        if isinstance(comparison, Uniform) or not depends_on_lane(comparison):
            uniform.append(comparison)
            continue
        is_low, bound = _bound(comparison)
        lo, hi = bound.range()
        if is_low and (hi is None or hi > 0):
            lows.append(bound)
        elif not is_low and (lo is None or lo < lanes):
            highs.append(bound)
    return LaneRange(tuple(dict.fromkeys(lows)), tuple(dict.fromkeys(highs)), tuple(uniform))


def _bound(comparison: Comparison) -> tuple[bool, Expr]:
    """(True, b) for lane >= b, (False, b) for lane < b."""
    split = split_linear(comparison.difference, LANE)
    slope = None if split is None else split[0].as_int()
    if split is None or slope is None or comparison.kind in ("eq", "ne"):
        raise Unsupported(f"a predicate that is not affine in the lane: {comparison.difference}")
    rest = split[1]
    if comparison.kind in ("sle", "sgt"):
        rest = rest - 1
    below = comparison.kind in ("slt", "sle")
    # below: slope * lane + rest < 0, else >= 0.
    if slope > 0:
        return not below, -floordiv(rest, slope)
    return below, floordiv(rest, -slope) + 1
