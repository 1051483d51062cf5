"""Places in memory, and differences that predicates compare, as functions of a nest's loops and threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from treadle.index.algebra import likelihood
from treadle.schedules.digits import Digits
from treadle.schedules.search.nest_accesses import Key, Loop, depends, moved

Values: TypeAlias = Mapping[Key, Any]
"""The iterations of levels and of other variables: numbers, or an array with one for each thread."""

WHOLE: Digits = ((float(2**62), 1),)
"""Of a coordinate that is the place itself."""


@dataclass(frozen=True)
class Coordinate:
    """A sum of variables, of which the digits move a place.

    steps: how far an iteration of each variable moves the sum; base: the sum where all of them are 0
    is_clamped: to the last position of an axis, so that it is not known to move by as much
    """

    digits: Digits
    base: int
    steps: Mapping[Key, int]
    is_clamped: bool = False


@dataclass(frozen=True)
class Place:
    """A place, in bytes: `start`, and what the coordinates add.

    trips: iterations of each variable; about: variables that move it in another way
    """

    start: int
    coordinates: tuple[Coordinate, ...]
    trips: Mapping[Key, int]
    about: frozenset[Key] = frozenset()

    def at(self, values: Values) -> Any:
        """The place for some iterations; variables that are left out stand at 0."""
        total: Any = self.start
        for each in self.coordinates:
            position: Any = each.base
            for key, step in each.steps.items():
                if key in values:
                    position = position + values[key] * step
            total = total + _digits_at(each.digits, position)
        return total

    def depends(self, loop: Loop) -> bool:
        """Whether the iterations of a loop move the place: rounds of threads that copy all do."""
        if loop.key[0] == "copy" or loop.key in self.about:
            return True
        for each in self.coordinates:
            step = abs(each.steps.get(loop.key, 0) * loop.every)
            if step and depends(each.digits, step, loop.trips):
                return True
        return False

    def moves_by(self, loop: Loop, distance: int) -> bool:
        """Whether an iteration of a loop moves the place so far along some coordinate."""
        return any((own := _moved(each, loop)) and own[0][1] == distance for each in self.coordinates)

    def is_run(self, loop: Loop, lanes: int, width: int) -> bool:
        """Whether each `lanes` iterations of a loop reach places `width` apart, the first at a multiple of all."""
        found = False
        if self.about:
            return False
        for each in self.coordinates:
            own = _moved(each, loop)
            if own and (found or each.is_clamped or own[0][1] != width or own[0][0] % lanes):
                return False
            if loop.key in each.steps and not self._is_aligned(each, loop, lanes):
                return False
            found = found or bool(own)
        return found and self.at({}) % (lanes * width) == 0 and self._steps_by(loop, lanes * width)

    def _steps_by(self, loop: Loop, unit: int) -> bool:
        """Whether all variables but a loop's own move the place by multiples of a unit."""
        for each in self.coordinates:
            for step, trips in self._others(each, loop):
                if any(moving % unit for _, moving in moved(each.digits, step, trips)):
                    return False
        return True

    def _is_aligned(self, coordinate: Coordinate, loop: Loop, lanes: int) -> bool:
        """Whether lanes do not carry from one digit into the next."""
        if len(coordinate.digits) == 1 or coordinate.is_clamped:
            return True
        unit = coordinate.steps[loop.key] * loop.every * lanes
        return not (coordinate.base % unit or any(step % unit for step, _ in self._others(coordinate, loop)))

    def _others(self, coordinate: Coordinate, loop: Loop | None) -> Iterator[tuple[int, int]]:
        """How far the other variables move a coordinate, and how often."""
        for key, step in coordinate.steps.items():
            trips = self.trips.get(key, 1)
            if loop is not None and key == loop.key:
                inner = loop.every * loop.trips
                step, trips = step * inner, trips // inner
            if trips > 1 and step:
                yield (1 if coordinate.is_clamped else abs(step)), trips

    def bounds(self, loop: Loop | None = None, first: int = 0) -> tuple[int, int]:
        """The least and the largest place; where the variable of a loop stands at `first`, if one is given."""
        lo = hi = self.start
        for each in self.coordinates:
            least = most = each.base
            for key, step in each.steps.items():
                reach = (self.trips.get(key, 1) - 1) * step
                if loop is not None and key == loop.key:
                    inner = loop.every * loop.trips
                    reach = (self.trips[key] // inner - 1) * inner * step
                    least, most = least + first * loop.every * step, most + first * loop.every * step
                least, most = least + min(reach, 0), most + max(reach, 0)
            ends = _range_of(each.digits, least, most)
            lo, hi = lo + ends[0], hi + ends[1]
        return lo, hi


@dataclass(frozen=True)
class Check:
    """A predicate of an access: `place kind 0`; no kind for one that no lanes agree on."""

    kind: str
    place: Place

    @property
    def is_true(self) -> bool:
        """Whether it always holds."""
        return bool(self.kind) and likelihood(self.kind, self.place.bounds()) == 1.0

    def agrees(self, loop: Loop, lanes: int) -> bool:
        """Whether it holds for all of `lanes` iterations of a loop, or for none of them."""
        if not self.kind or not self.place.depends(loop):
            return bool(self.kind)
        if self.kind in ("eq", "ne"):
            return False
        later = 1 if self.kind in ("sle", "sgt") else 0
        place = replace(self.place, start=self.place.start - later)
        return place.is_run(loop, lanes, 1)

    def probability(self, loop: Loop, first: int, blocks: tuple[Key, ...]) -> float:
        """How likely it holds where the variable of a loop stands at `first`, if all values of the difference are
        equally likely; what blocks move counts as true."""
        place = self.place
        if any(place.trips.get(key, 1) > 1 and each.steps.get(key) for key in blocks for each in place.coordinates):
            return 1.0
        return likelihood(self.kind, place.bounds(loop, first))


def _moved(coordinate: Coordinate, loop: Loop) -> list[tuple[float, int]]:
    """How a loop moves a place along a coordinate; nothing where it does not."""
    step = coordinate.steps.get(loop.key, 0) * loop.every
    if not step:
        return []
    found = moved(coordinate.digits, abs(step), loop.trips)
    return [(n, -s if step < 0 else s) for n, s in found] if any(s for _, s in found) else []


def _digits_at(digits: Digits, position: Any) -> Any:
    """What a coordinate adds to a place."""
    if len(digits) == 1:
        return position * digits[0][1]
    total: Any = 0
    weight = 1
    for n, (size, step) in enumerate(digits):
        digit = position // weight if n == len(digits) - 1 else position // weight % int(size)
        total, weight = total + digit * step, weight * int(size)
    return total


def _range_of(digits: Digits, least: int, most: int) -> tuple[int, int]:
    """The range of what a coordinate adds."""
    lo = hi = 0
    weight = 1
    for n, (size, step) in enumerate(digits):
        first, last = least // weight, most // weight
        if n < len(digits) - 1:
            whole = first // int(size) != last // int(size)
            first, last = (0, int(size) - 1) if whole else (first % int(size), last % int(size))
        lo, hi = lo + min(first * step, last * step), hi + max(first * step, last * step)
        weight *= int(size)
    return lo, hi


__all__ = ["WHOLE", "Check", "Coordinate", "Place", "Values"]
