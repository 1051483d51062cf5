"""Which tiles of accumulators lie inside of all extents that tiles overhang: they need no masks and no clamps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from math import gcd, prod

from treadle.schedules.index_value import Index, Predicate
from treadle.schedules.nest.nest import Axis, Nest


@dataclass(frozen=True)
class WholeAlong:
    """When a tile lies inside of one axis: where the number of the unit that it starts at is below `limit`.

    steps: units that an iteration of each level outside of the tile moves it; most: the number of the last tile's unit
    """

    axis: Axis
    steps: Mapping[int, int]
    limit: int
    most: int

    def start(self, at: Mapping[int, Index]) -> Index:
        """The number of the unit that a tile starts at."""
        total: Index | None = None
        for n, step in self.steps.items():
            term = at[n] * step
            total = term if total is None else total + term
        assert total is not None, "an axis along which no level moves the tile is not overhung by some tiles only"
        return total


def whole_along(nest: Nest) -> tuple[WholeAlong, ...]:
    """For each spatial axis that some tiles of a nest on a CPU overhang and others do not, when one is inside.

    None at all where no tile reaches further than one position along such an axis: what is masked or clamped then does
    not move inside of the tile.
    """
    found = [each for axis in nest.axes if not axis.is_reduction and (each := _along(nest, axis)) is not None]
    return tuple(found) if any(_span(nest, each.axis) > 1 for each in found) else ()


def _along(nest: Nest, axis: Axis) -> WholeAlong | None:
    span = _span(nest, axis)
    if not nest.overhangs(axis) or span > axis.extent:
        return None
    levels = [(n, level) for n, level in enumerate(nest.levels) if level.axis == axis and n not in nest.tile]
    strides = {n: level.stride for n, level in levels if level.trips > 1}
    unit = gcd(*strides.values())
    steps = {n: stride // unit for n, stride in strides.items()}
    most = sum(step * (nest.levels[n].trips - 1) for n, step in steps.items())
    return WholeAlong(axis, steps, (axis.extent - span) // unit + 1, most)


def _span(nest: Nest, axis: Axis) -> int:
    """Positions from the first of a tile to its last one."""
    inside = [nest.levels[n] for n in nest.tile if nest.levels[n].axis == axis]
    return 1 + sum((level.trips - 1) * level.stride for level in inside)


def is_whole(axes: tuple[WholeAlong, ...], at: Mapping[int, Index]) -> Predicate:
    """Whether the tile that stands where the levels outside of it are lies inside of the axes."""
    conditions = [each.start(at) < each.limit for each in axes]
    found = conditions[0]
    for condition in conditions[1:]:
        found = found & condition
    return found


def is_ragged(axes: tuple[WholeAlong, ...], at: Mapping[int, Index]) -> Predicate:
    """The opposite of `is_whole`."""
    conditions = [each.start(at) >= each.limit for each in axes]
    found = conditions[0]
    for condition in conditions[1:]:
        found = found | condition
    return found


def parts(axes: tuple[WholeAlong, ...]) -> tuple[float, float]:
    """How many of the tiles are inside, and how many are not; each unit counts as the start of one."""
    inside = prod(each.limit / (each.most + 1) for each in axes)
    first, *others = ((each.most + 1 - each.limit) / (each.most + 1) for each in axes)
    return inside, reduce(lambda found, each: 1 - (1 - found) * (1 - each), others, first)


__all__ = ["WholeAlong", "is_ragged", "is_whole", "parts", "whole_along"]
